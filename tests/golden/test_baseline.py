"""Not worse than the baseline: every static figure of DeepGEMM's CUDA kernel (tests/baseline_static.json), of whose loops K blocks count
128 channels, against the committed figures of the same tier.

SMEM is not compared: more of it is deeper rings, and what counts is that it fits (tests/kernels/test_resources.py).
"""

import json
from typing import Any

import golden_figures as figures
import pytest

from megamoe_dsl.hardware.operand_tile import BLOCK_K
from megamoe_dsl.kernels.moe.sm100.choose import TIERS

TILES = [tier.block_m for tier in TIERS]
BASELINE = json.loads((figures.FOLDER.parent / "baseline_static.json").read_text())

WORSE: dict[str, tuple[tuple[int, ...], str]] = {
    # A token is summed in four pieces of 1024 channels, by different warps, so that few tokens still use every SM; the baseline's warp
    # takes a whole token.  The set-up of a piece counts four times, and so do the loads of all six slots, which are issued at once; the
    # baseline issues one load per slot inside its loop.  A slot itself costs 168 against 217.
    "combine_token": ((16, 32, 64, 96, 128, 192), "four pieces per token, loads of all slots at once"),
}
"""Measures that are larger than the baseline's, at which tiles, and why."""


def baseline_of(block_m: int) -> dict[str, Any]:
    """Resources, and measures by the keys of `measures.Measure`."""
    config = figures.config_of("sm_100a", "flash", block_m)
    same = [config.problem.recipe, config.problem.num_ranks, config.num_sms]
    assert same == [BASELINE[name] for name in ("recipe", "num_ranks", "num_sms")]
    (tier,) = [one for one in BASELINE["tiers"] if one["block_m"] == block_m]
    measures = {f"{loop}_k_block": tier[f"{loop}_k_block"] * BLOCK_K / tier["block_k"] for loop in ("mma", "token_loader", "weight_loader")}
    measures |= {name: tier[name] for name in ("fc1_epilogue_8_tokens", "fc2_epilogue_8_tokens")}
    return {**tier, "measures": {**measures, "token_loader_tile": tier["tile"], **BASELINE["all_tiers"]}}


def test_k_blocks_of_the_baseline_count_128_channels() -> None:
    assert baseline_of(16)["measures"]["mma_k_block"] == 58.5  # 117 for 256


def larger_measures(block_m: int) -> dict[str, str]:
    """Measure to "ours > theirs"."""
    ours = figures.read("sm_100a", "flash", block_m)["measures"]
    theirs = baseline_of(block_m)["measures"]
    return {key: f"{ours[key]['instructions']} > {value}" for key, value in theirs.items() if ours[key]["instructions"] > value}


@pytest.mark.parametrize("block_m", TILES)
def test_no_measure_is_larger_than_the_baselines_without_a_reason(block_m: int) -> None:
    excused = {key for key, (tiles, _) in WORSE.items() if block_m in tiles}
    assert {key: values for key, values in larger_measures(block_m).items() if key not in excused} == {}


@pytest.mark.parametrize("key", WORSE)
def test_no_excuse_outlives_its_reason(key: str) -> None:
    tiles, reason = WORSE[key]
    assert reason
    assert [block_m for block_m in TILES if key in larger_measures(block_m)] == list(tiles)


@pytest.mark.parametrize("block_m", TILES)
def test_resources_are_not_worse(block_m: int) -> None:
    ours, theirs = figures.read("sm_100a", "flash", block_m), baseline_of(block_m)
    assert ours["config"]["stages"] >= theirs["stages"]
    assert ours["resources"]["stack_bytes"] == 0 <= theirs["spill_bytes"]
    assert ours["resources"]["registers"] <= theirs["registers"]
    assert ours["resources"]["instructions"] <= theirs["instructions"]

"""The expert-parallel kernels of SM100 on simulated ranks: rows of Linear1 and y of every token to the bit, race detector on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ep_runs import check_combine, check_dispatch, checked_dispatch, problem, row_activations, simulated, small_config

from ep_traffic import Traffic
from megamoe_dsl.cases import random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from sweep import rarely

MOE = problem(recipe="fp8xfp4")
SMALL = DispatchGemmConfig(MOE, num_sms=2, arch_name="sm_100a")


@pytest.mark.parametrize(
    ("recipe", "combine"),
    [
        ("fp8xfp4", {}),
        rarely("fp8xfp4", {"scatter": False}),
        rarely("fp8xfp4", {"interleaved": False, "token_blocks": 2, "task_tokens": 1}),
        rarely("mxf4xmxf4", {}),
        rarely("mxf4xmxf4", {"scatter": False}),
        rarely("mxf4xmxf4", {"interleaved": False, "block_m": 64}),
        rarely("mxfp8xmxfp8", {}),
        rarely("bf16xbf16", {}),
        rarely("bf16xbf16", {"scatter": False}),
        rarely("bf16xbf16", {"interleaved": False, "block_m": 64}),
    ],
)
def test_two_ranks(recipe: str, combine: dict[str, Any]) -> None:
    """Dropped pairs; most tokens for the same few experts, a rank without tokens; all pairs dropped."""
    moe = problem(recipe=recipe, intermediate=256)
    masked, skewed = random_case(moe, (20, 9), 1, mask=0.3), random_case(moe, (0, 20), 2, skew=True)
    skewed = replace(skewed, weights=masked.weights)
    nothing = replace(skewed, topk_idx=[torch.full_like(idx, -1) for idx in skewed.topk_idx])
    ep = simulated(SMALL.replace(problem=moe, num_stages=0), masked, combine)
    for number, (case, rows) in enumerate(((masked, int((torch.cat(masked.topk_idx) >= 0).sum())), (skewed, 60), (nothing, 0))):
        assert check_dispatch(ep, case) == rows
        assert check_combine(ep, case, row_activations(ep, number)) == sum(map(len, case.x))


@pytest.mark.sweep
def test_launches_without_a_pause() -> None:
    """Each finds counters as the one before left them for it, while the other rank may still be in that one."""
    case = random_case(MOE, (12, 7), 4, mask=0.1)
    ep = simulated(SMALL, case, {"scatter": False}, seed=5)
    check_dispatch(ep, case, launches=3)
    check_combine(ep, case, row_activations(ep, 0), launches=2)
    assert [buffers.view("launch_epoch").tolist() for buffers in ep.ranks] == [[3, 2, 0]] * 2


@pytest.mark.parametrize(
    ("recipe", "block_m", "options", "combine_m"),
    [
        ("fp8xfp4", 128, {}, 64),
        rarely("fp8xfp4", 64, {"block_wise": False}, 192),
        rarely("fp8xfp4", 32, {"block_wise": False}, 32),
        rarely("fp8xfp4", 128, {"block_wise": False}, 128),
        rarely("bf16xbf16", 64, {}, 192),
        rarely("bf16xbf16", 32, {}, 32),
    ],
)
def test_one_rank_with_several_tiles_of_an_expert(recipe: str, block_m: int, options: dict[str, Any], combine_m: int) -> None:
    """Each waiting for its own rows or for all; tiles of Linear2 that begin inside 128 rows whose scales come together, or go beyond them;
    an expert without rows."""
    moe = problem(150, num_ranks=1, num_experts=3, topk=1, hidden=256, recipe=recipe)
    case = random_case(moe, (150,), 6, target_expert=1)
    config = DispatchGemmConfig(moe, block_m, num_sms=2, arch_name="sm_100a", **options)
    ep = simulated(config, case, {"block_m": combine_m})
    assert check_dispatch(ep, case) == 150
    assert check_combine(ep, case, row_activations(ep, 0)) == 150


@pytest.mark.parametrize(
    "options",
    [
        rarely({"token_sorting": False}),
        rarely({"block_wise": False}),
        rarely({"token_saving": False}),
        rarely({"token_saving": False, "token_sorting": False, "block_wise": False}),
        {"tail_sms": 1},
        rarely({"tail_sms": 1, "block_m": 64, "block_wise": False}),
    ],
    ids=str,
)
def test_tokens_saved_do_not_cross(options: dict[str, Any]) -> None:
    """The rows that bulk copies fetch from the other rank are those that the tables count; two E2M1 in a byte."""
    moe = problem(9, num_experts=6, hidden=256, recipe="mxf4xmxf4")
    case = random_case(moe, (9, 6), 7, mask=0.1)
    config = small_config(moe).replace(num_stages=0, **options)
    traffic = Traffic.of(moe, case.topk_idx, config.token_saving)
    assert traffic.tokens < traffic.pairs or not config.token_saving
    assert checked_dispatch(simulated(config, case), case, 2).crossed == 2 * moe.hidden // 2 * traffic.tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_m", 96), ("block_m", 192), ("block_n", 128), ("cluster", 1), ("num_sms", 3)],
)
def test_bad_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = {value!r}: must be "):
        SMALL.replace(**{field: value})


def test_a_tile_of_few_rows_waits_for_its_expert() -> None:
    """Scales of 128 rows come together, and those after the tile's may be on their way."""
    with pytest.raises(ConfigError, match=r"block_wise = True: must be False, or block_m = 128: scales of 128 rows are fetched together"):
        SMALL.replace(block_m=64)
    assert not SMALL.replace(block_m=64, block_wise=False).block_wise


def test_formats_of_other_chips_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"problem\.recipe = 'fp8xfp8': must be fp8xfp4 or mxf4xmxf4 or mxfp8xmxfp8 or bf16xbf16 for sm_100a"
    ):
        GemmCombineConfig(problem(), arch_name="sm_100a")

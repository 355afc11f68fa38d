"""What the model says that tiles take, and what they run on, of a layer whose tiles can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megamoe_dsl import Problem, Target, choose
from prediction import sm90, sm100
from prediction.calibration import Calibration, calibration_of
from prediction.launch import RankLoad, tiles_of
from prediction.machine import Machine, TileTable

LOAD = RankLoad(256, (64, 140), 0.5)  # tokens of two experts: of 128 a block, one of 64, one of 128 and one of 12
LOAD_100 = RankLoad(256, (33, 140), 0.5)  # of 96 a block, one of 33, one of 96 and one of 44
SM90 = {
    "rows": 100.0,
    "rows_token": 2.0,
    "columns": 50.0,
    "columns_token": 3.0,
    "packed_columns": 70.0,
    "packed_token": 5.0,
    "decode": 500.0,
}
SM100 = {"flop_per_clock": 16384.0, "efficiency": 0.5, "warp_clocks": 2.0, "epilogue_clocks": 3.0, "hbm_gap": 64.0}
EPILOGUES = {"fc1_epilogue": 4.0, "fc2_epilogue": 8.0}
INSTRUCTIONS = sm100.Instructions(fc1=100.0, fc2=20.0, tile=80.0, mma=50.0, load=25.0)
GHZ = 2.0
K_BLOCK = 128 * 256  # bytes of its weights in FP8


def calibrated(gpu: str, **kernel: float) -> Calibration:
    found = calibration_of(gpu)
    return replace(found, kernel=kernel | EPILOGUES, spread=0.6, weights_kept=1.0, l2_kept=1e5)


def config_of(arch: str, recipe: str, block_m: int, sms: int = 4, **fields: Any) -> Any:
    """Of 4 K blocks of FP8 in Linear1 and 2 in Linear2, and of two blocks of 256 rows of weights in both."""
    return choose(Problem(512, 256, 4, 2, 2, 256, recipe=recipe), Target.typical(arch, sms), 256, block_m=block_m, **fields)


def costs_90(recipe: str = "fp8xfp8", **fields: Any) -> tuple[TileTable, Machine]:
    config, calibration = config_of("sm_90a", recipe, 128, **fields), calibrated("NVIDIA H200", **SM90)
    return sm90.tile_table(config, tiles_of(config, LOAD.counts), LOAD, calibration, GHZ), sm90.machine(config, LOAD, calibration, GHZ)


def costs_100(sms: int = 4, **shape: Any) -> tuple[TileTable, Machine]:
    config = config_of("sm_100a", "fp8xfp4", 96, sms)
    given = replace(sm100.shape_of(config), **{"instructions": INSTRUCTIONS, **shape})
    how = LOAD_100, calibrated("NVIDIA B200", **SM100), GHZ
    return sm100.tile_table(given, tiles_of(config, LOAD_100.counts), *how), sm100.machine(given, *how)


def columns(table: TileTable, *tiles: int) -> dict[str, Any]:
    """Of these tiles."""
    return {name: getattr(table, name)[list(tiles)].tolist() for name in TileTable.__dataclass_fields__}


SMALL, FULL, REST = 0, 2, 3  # tiles of Linear1 of an H200: of the blocks of 64, 128 and 12 tokens
OF_FC2 = 6  # and those of Linear2 so much later


ORDER = {
    "is_fc2": [0, 0, 0, 1, 1, 1],
    "k_blocks": [4, 4, 4, 2, 2, 2],
    "keys": [[0, -1, 24, -1], [12, -1, 30, -1], [12, -1, 36, -1], [8, -1, 28, -1], [20, -1, 34, -1], [20, -1, 40, -1]],
    "pools": [[0, 0], [1, 1], [2, 2]] * 2,
    "arrivals": [1] * 6,
}
"""Of an expert's block and of another's two, whatever the architecture: in Linear1, then in Linear2."""


def test_tiles_of_one_cta() -> None:
    found = columns(costs_90(cluster=1)[0], SMALL, FULL, REST, SMALL + OF_FC2, FULL + OF_FC2, REST + OF_FC2)
    rows, epilogues = [64, 128, 64] * 2, [8 * (0.35 + 0.65 * tokens / 128) for tokens in (64, 128, 12)]
    assert found == {
        **ORDER,
        "l2_bytes": [[K_BLOCK, one * (128 + 4)] for one in rows],  # a scale of 4 bytes for the 128 channels of a token
        "hbm_bytes": [[K_BLOCK, one * 128] for one in rows],
        "multiply": pytest.approx([(100 + 2 * one) / 2000 for one in rows]),
        "epilogue": pytest.approx([4.0] * 3 + epilogues),
        "nvlink": [0.0] * 3 + [tokens * 256 * 2 / 2 for tokens in (64, 128, 12)],  # half of the results, of 2 bytes
        "written": [tokens * 128 for tokens in (64, 128, 12)] + [tokens * 256 * 2 for tokens in (64, 128, 12)],
        "energy": [0.5, 1.0, 0.5] * 2,
    }


def test_tiles_of_a_pair_share_weights_or_tokens() -> None:
    """The expert of one block has the pair's two blocks of weights; the blocks of 128 and 12 tokens have weights in common."""
    found = columns(costs_90(cluster=2)[0], 0, 1, 3, 4)
    assert (found["keys"], found["pools"]) == (
        [[0, 4, 24, -1], [12, -1, 30, 36], [8, 10, 28, -1], [20, -1, 34, 40]],
        [[0, 0], [1, 2], [0, 0], [1, 2]],
    )
    assert found["arrivals"] == [2, 1, 2, 1]
    assert found["hbm_bytes"] == [[K_BLOCK, 64 * 128], [K_BLOCK, 128 * 128]] * 2
    assert found["written"] == [128 * 128, 140 * 128, 128 * 512, 140 * 512] and found["nvlink"] == [0, 0, 128 * 256, 140 * 256]
    assert found["epilogue"] == pytest.approx([4.0, 4.0, 8 * (0.35 + 0.65 * 64 / 128), 8.0])


@pytest.mark.parametrize(
    ("recipe", "weights", "token", "hidden", "clocks"),
    [
        ("fp8xfp8", K_BLOCK, (128 + 4, 128), 128, 100 + 2 * 64),
        ("fp8xmxfp4", K_BLOCK / 2 + K_BLOCK / 32, (128 + 4, 128), 128, 500),  # decoding takes longer than 228 or 356
        ("bf16xbf16", K_BLOCK, (128, 128), 256, 100 + 2 * 64),
    ],
)
def test_formats_of_sm90(recipe: str, weights: float, token: tuple[int, int], hidden: int, clocks: float) -> None:
    """What a K block's weights take, a token of it in L2 and in HBM, a token of what Linear1 stores, and a K block of 64 tokens."""
    found = columns(costs_90(recipe, cluster=1)[0], SMALL)
    assert found["l2_bytes"] == [[weights, 64 * token[0]]] and found["hbm_bytes"] == [[weights, 64 * token[1]]]
    assert found["written"] == [64 * hidden] and found["multiply"] == pytest.approx([clocks / 2000])


def test_packed_weights_of_few_tokens_are_decoded_by_who_multiplies() -> None:
    config = config_of("sm_90a", "fp8xmxfp4", 32, cluster=1)
    us, energy = sm90.multiplication(config, np.array([32, 8]), np.array([0, 0]), calibrated("NVIDIA H200", **SM90), GHZ)
    assert us.tolist() == pytest.approx([(70 + 5 * 32) / 2000] * 2) and energy.tolist() == pytest.approx([0.1 + 32 / 128] * 2)


@pytest.mark.parametrize("cluster", [1, 2])
def test_what_a_launch_of_sm90_runs_on(cluster: int) -> None:
    """Two experts of 3 x 512 x 256 weights are four times what L2 keeps; those who multiply finish their tiles themselves."""
    found, gpu = costs_90(cluster=cluster)[1], calibration_of("NVIDIA H200")
    assert found.kept == pytest.approx(1e5 / (2 * 3 * 512 * 256)) and costs_90("bf16xbf16")[1].kept == pytest.approx(found.kept / 2)
    assert (found.handed_out, found.places, found.overlaps, found.groups) == (True, 1, False, 1)
    assert found.stages == config_of("sm_90a", "fp8xfp8", 128, cluster=cluster).num_stages
    assert found.spread.tolist() == [0.0] * (4 // cluster) and found.slower.tolist() == [1.0, 1.0]
    assert (found.issue, found.window, found.pulled_from) == (0.02, 0.8, 0.5)
    assert found.l2 == gpu.l2_per_clock * 2e3 and found.port == gpu.port_per_clock * 2e3 * cluster
    assert found.gpu.hbm_latency == gpu.hbm_latency and found.clock == GHZ


def test_tiles_of_a_pair_of_sm100() -> None:
    """Blocks of 33, 96 and 44 tokens: MMAs have a multiple of 16 of them, and take 32 clocks and an eighth of one a token at least."""
    found = columns(costs_100()[0], 0, 2, 4, 6, 8, 10)
    mma = [32 + 48 / 8, 256 * 96 * 32 / 16384, 32 + 48 / 8]
    fc1, fc2 = ([(instructions * stored / 8 + 80) * 3 / 2000 for stored in (64, 96, 64)] for instructions in (100, 20))
    assert found == {
        **ORDER,
        "l2_bytes": [[K_BLOCK / 2 + 1024, 96 * 128 + 1024]] * 6,  # an atom of scales for each 128 rows: each CTA has those of all tokens
        "hbm_bytes": [[K_BLOCK / 2 + 1024, 96 * 128 + 512]] * 6,
        "multiply": pytest.approx([4 * clocks / 0.5 / 2000 for clocks in mma] * 2),
        "epilogue": pytest.approx([4 + one for one in fc1] + [8 + one for one in fc2]),
        "nvlink": [0.0] * 3 + [tokens * 256 for tokens in (33, 96, 44)],
        "written": [tokens * 128 for tokens in (33, 96, 44)] + [tokens * 512 for tokens in (33, 96, 44)],
        "energy": [48 / 128, 96 / 128, 48 / 128] * 2,
    }


@pytest.mark.parametrize(("shares", "warpgroups", "share"), [(True, 2, 0.5), (True, 1, 1.0), (False, 2, 1.0)])
def test_two_warpgroups_halve_a_tile_that_they_share(shares: bool, warpgroups: int, share: float) -> None:
    found = columns(costs_100(shares_tile=shares, epilogue_warpgroups=warpgroups)[0], 2)
    assert found["epilogue"] == pytest.approx([4 + (share * 100 * 96 / 8 + 80) * 3 / 2000])


def test_warps_that_issue_mmas_may_take_longer_than_the_mmas() -> None:
    table, machine = costs_100(instructions=replace(INSTRUCTIONS, mma=160.0))
    assert columns(table, 0, 2)["multiply"] == pytest.approx([2 * 160 / 2000, 4 * 48 / 0.5 / 2000])
    assert machine.issue == pytest.approx(25 * 2 / 2000)


@pytest.mark.parametrize(
    ("tiles_weights", "slower"),
    [(True, [1 + 64 / (64 * 128), 1 + 64 / 128]), (False, [1 + 64 / 64, 1 + 64 / 128])],
)
def test_what_a_launch_of_sm100_runs_on(tiles_weights: bool, slower: list[float]) -> None:
    """The slowest pair is slower by the spread; a row of weights in FP4 is 64 bytes long, and a CTA's tile has 128 of them."""
    found = costs_100(tiles_weights=tiles_weights)[1]
    assert found.slower.tolist() == pytest.approx(slower)
    for sms, spread in ((2, [0.0]), (4, [0.0, 0.6]), (8, [0.0, 0.2, 0.4, 0.6])):
        assert sorted(costs_100(sms)[1].spread.tolist()) == pytest.approx(spread)
    assert (found.places, found.overlaps, found.groups, found.window, found.handed_out) == (2, True, 2, 0.25, True)
    assert found.kept == pytest.approx(1e5 / (2 * 3 * 512 * 256 * (1 / 2 + 1 / 32)))
    assert found.port == calibration_of("NVIDIA B200").port_per_clock * 2e3 * 2

"""The clock that power allows, what a better resource saves, and preferences: of launches whose time and energy are formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megamoe_dsl import Problem, Target, choose
from prediction.calibration import Calibration, calibration_of
from prediction.engine import Run
from prediction.launch import KBlocks, RankLoad, Tiles, weights_kept
from prediction.prediction import Launched, Subject, at_power, power, prefers
from prediction.sm90 import multiplication
from prediction.sm100 import shape_of

GPU = replace(
    calibration_of("NVIDIA H200"),
    clock=2.0,
    power=400.0,
    static_power=100.0,
    multiply_energy=0.06,
    energy_exponent=1.0,
    hbm_energy=1e-9,
    hbm=1.0,
    nvlink=1.0,
    l2_per_clock=1.0,
    tail=24.0,
    start=0.0,
    kernel={"tile": 9.0},
)


def launched(clock: float, us: float, multiplying: float = 0.0, calibration: Calibration = GPU, subject: Any = None) -> Launched:
    """One of 10 workers."""
    none = np.zeros(0, np.int64)
    run = Run(us, 10, none, none, np.zeros((0, 5)), 2e6, 0.0, 0.0, 3e6, 10 * multiplying, 1.0)
    return Launched(subject, calibration, clock, us, power(run, us, 1e6, calibration, clock), run, 0.0, 0.0, 1e6)


def test_power_is_energy_over_time() -> None:
    """What multiplies, by the clock, and what moves bytes of HBM: 0.06 J and 0.006 J in 100 us."""
    assert launched(2.0, 100.0).watts == pytest.approx(100 + 660)
    assert launched(1.0, 100.0).watts == pytest.approx(100 + 360)
    assert launched(1.0, 100.0, calibration=replace(GPU, energy_exponent=2.0)).watts == pytest.approx(100 + 210)


@pytest.mark.parametrize(
    ("limit", "multiplying", "first", "clock", "clocks"),
    [
        (760.0, 0.0, None, 2.0, [2.0]),  # just within the power
        (460.0, 0.0, None, 1.0, [2.0, 1.0]),  # time stays, energy halves
        (340.0, 50.0, None, 1.0, [2.0, 1.0]),  # half of the launch takes twice as long: 36 J in 150 us
        (340.0, 50.0, 1.0, 1.0, [1.0]),
        (1000.0, 0.0, 1.0, 2.0, [1.0, 2.0]),
        (120.0, 0.0, None, 0.8, [2.0, 0.8]),  # no lower
    ],
)
def test_the_clock_is_the_highest_within_the_power(
    limit: float, multiplying: float, first: float | None, clock: float, clocks: list[float]
) -> None:
    """Another launch is tried for each clock but the last."""
    tried = list[float]()
    limited = replace(GPU, power=limit)

    def launch(clock: float) -> Launched:
        tried.append(clock)
        return launched(clock, 100.0 - multiplying + multiplying * 2.0 / clock, multiplying * 2.0 / clock, calibration=limited)

    found = at_power(launch, limited, first)
    assert found.clock == pytest.approx(clock, abs=1e-4) and tried == pytest.approx(clocks, abs=1e-4)


class Stub:
    """A launch that takes so long by a calibration."""

    def __init__(self, us: Callable[[Calibration], float]) -> None:
        self.us = us

    def predict(self, calibration: Calibration, first: float | None = None) -> Launched:
        assert first is not None
        return launched(first, self.us(calibration))


@pytest.mark.parametrize(("clock", "of_power"), [(1.9, {"power": 0.05}), (2.0, {})])
def test_gains_are_what_a_fifth_more_saves(clock: float, of_power: dict[str, float]) -> None:
    """60 us of HBM are 50 with a fifth more; less than half a percent is left out, and so is power at the highest clock."""
    subject: Any = Stub(
        lambda one: 60 / one.hbm + 12 / one.nvlink + 2.4 / one.l2_per_clock + one.tail + one.kernel["tile"] / 6 - one.power / 16 + 25.1
    )
    found = launched(clock, 100.0, subject=subject).gains
    wanted = {"HBM": 0.10, **of_power, "start and end": 0.04, "NVLink": 0.02}
    assert found == pytest.approx(wanted, abs=1e-9) and list(found) == list(wanted)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [(100.0, 105.0, None), (105.0, 100.0, None), (100.0, 105.1, True), (105.1, 100.0, False), (100.0, 100.0, None)],
)
def test_there_is_no_preference_within_5_percent_of_the_smaller(one: float, other: float, wanted: bool | None) -> None:
    assert prefers(one, other) is wanted


def test_a_launch_begins_when_counts_are_known_and_pulls_warp_by_warp() -> None:
    """A warp's later tokens take 1.6 times as long as its first; in the end every token's results are read and y is written."""
    problem, calibration = Problem(1024, 512, 16, 2, 2, 256, recipe="fp8xfp8"), replace(calibration_of("NVIDIA H200"), nvlink=1e9)
    config, load = choose(problem, Target.typical("sm_90a", 8), 256), RankLoad(256, (100, 0, 30, 7, 200, 60, 70, 53), 0.5)
    found = replace(Subject.of(config, load), dispatch_warps=4, pull_rounds=3).launch(calibration, calibration.clock)
    assert found.start == pytest.approx(calibration.start + 256 * calibration.start_per_token)
    token = calibration.pull + 3 * calibration.pull_round + 1024 / calibration.pull_rate
    assert found.pulled == pytest.approx(found.start + (1 + 1.6 * 16) * token)  # 520 tokens are 17 of one of 32 warps
    assert found.combine_bytes == 256 * (2 * 2 + 2) * 1024
    assert found.us == pytest.approx(found.run.end + found.combine_bytes / calibration.hbm + calibration.tail)


@pytest.mark.parametrize(
    ("arch", "recipe", "rounds"),
    [("sm_90a", "fp8xfp8", 4), ("sm_90a", "bf16xbf16", 4), ("sm_100a", "fp8xfp4", 1), ("sm_100a", "bf16xbf16", 1)],
)
def test_a_row_moves_in_rounds(arch: str, recipe: str, rounds: int) -> None:
    """Of 2 or 4 chunks of 1024 bytes on SM90; a warp of SM100 has room for a whole row."""
    problem = Problem(7168, 512, 16, 2, 2, 256, recipe=recipe)
    config = choose(problem, Target.typical(arch), 256)
    assert Subject.of(config, RankLoad.uniform(problem, 256)).pull_rounds == rounds
    assert config.smem.pull_chunk * config.smem.pull_slots * rounds >= problem.formats.activations.row_bytes(7168)


def test_power_is_worth_something_where_it_lowers_the_clock() -> None:
    problem, calibration = Problem(1024, 512, 16, 2, 2, 256, recipe="fp8xfp8"), calibration_of("NVIDIA H200")
    config, load = choose(problem, Target.typical("sm_90a"), 256), RankLoad.uniform(problem, 256)
    free, limited = (Subject.of(config, load).predict(one) for one in (calibration, replace(calibration, power=134.0)))
    assert limited.clock < free.clock and "power" in limited.gains and "power" not in free.gains


def test_every_k_block_has_a_number_of_its_own() -> None:
    """Those of weights expert by expert, then those of the pool block by block; of Linear1 before those of Linear2."""
    blocks = KBlocks.of(Problem(1024, 512, 16, 2, 2, 256))
    assert (blocks.fc1, blocks.fc2, blocks.fc1_n, blocks.fc2_n, blocks.experts) == (8, 4, 4, 4, 8)  # of 128 channels, of 256 rows
    tiles = [(is_fc2, expert, n, expert, 1) for is_fc2 in range(2) for expert in range(8) for n in range(4)]
    found = Tiles(*np.array(tiles).T)
    weights, tokens, counts = blocks.weights(found), blocks.tokens(found), blocks.count(found)
    assert counts.tolist() == [8] * 32 + [4] * 32
    numbers = [number + k for number, count in zip(weights, counts, strict=True) for k in range(count)]
    assert sorted(numbers) == list(range(8 * (4 * 8 + 4 * 4))) and numbers[: 4 * 8] == list(range(32))
    rows = {(block, is_fc2): number for (is_fc2, _, _, block, _), number in zip(tiles, tokens.tolist(), strict=True)}
    assert rows == {(block, is_fc2): 384 + 12 * block + 8 * is_fc2 for block in range(8) for is_fc2 in range(2)}


@pytest.mark.parametrize(("counts", "share"), [((1, 0, 5, 0), 0.25), ((1, 1, 5, 9), 0.125), ((3, 0, 0, 0), 0.5), ((0, 0, 0, 0), 0.6)])
def test_weights_of_fewer_experts_stay_in_l2(counts: tuple[int, ...], share: float) -> None:
    """Of what they read, half as much as L2 keeps; never more than 0.6."""
    problem = Problem(1024, 512, 4, 1, 1, 16)
    l2 = replace(GPU, weights_kept=0.5, l2_kept=3 * 1024 * 512.0)
    assert weights_kept(problem, RankLoad(16, counts, 0.0), 1.0, l2) == pytest.approx(share)
    assert weights_kept(problem, RankLoad(16, counts, 0.0), 2.0, l2) == pytest.approx(share / 2 if share < 0.6 else 0.6)


def multiplied_by(first: list[int], second: list[int], **fields: Any) -> tuple[list[float], list[float]]:
    """Clocks and energy of a K block of tiles of so many tokens, and of their pairs' other tiles."""
    config: Any = choose(Problem(1024, 512, 16, 2, 2, 256, recipe="fp8xfp8"), Target.typical("sm_90a"), 256, **fields)
    kernel = {"rows": 100.0, "rows_token": 2.0, "columns": 50.0, "columns_token": 3.0}
    us, energy = multiplication(config, np.array(first), np.array(second), replace(GPU, kernel=kernel), 2.0)
    return (us * 2e3).tolist(), energy.tolist()


def test_half_tiles_take_half_the_rows_and_the_energy() -> None:
    """A pair of tiles takes as long as its longer one, and the energy of both."""
    first, second = [1, 64, 65, 128, 64, 64, 128, 10, 128], [0, 0, 0, 0, 1, 64, 64, 65, 128]
    clocks, energy = multiplied_by(first, second, block_m=128, cluster=2)
    half, whole = 100 + 2 * 64, 100 + 2 * 128
    assert clocks == pytest.approx([half, half, whole, whole, half, half, whole, whole, whole])
    assert energy == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 2.0]


def test_tokens_that_are_columns_take_as_long_as_rows_and_columns_together() -> None:
    clocks, energy = multiplied_by([1, 32], [0, 0], block_m=32)
    assert clocks == pytest.approx([50 + 5 * 32] * 2) and energy == pytest.approx([0.1 + 32 / 128] * 2)


def test_the_shape_of_our_kernel_is_its_configurations() -> None:
    """Tiles are handed out at run time, each to one warpgroup, and weights of a stage are contiguous."""
    config: Any = choose(Problem(1024, 512, 16, 2, 2, 256), Target.typical("sm_100a", 8), 256, block_m=96, num_stages=3)
    found = shape_of(config)
    names = ("problem", "num_sms", "block_m", "store_block_m", "epilogue_warpgroups", "num_stages", "k_block")
    assert [getattr(found, name) for name in names] == [getattr(config, name) for name in names]
    assert (found.handed_out, found.shares_tile, found.tiles_weights) == (True, False, True)


@pytest.mark.parametrize(("block_m", "block_k", "mma"), [(32, 128, 38), (32, 256, 62), (192, 128, 38), (192, 256, 62)])
def test_instructions_of_packed_values_are_those_of_the_k_block(block_m: int, block_k: int, mma: float) -> None:
    problem = Problem(1024, 512, 16, 2, 2, 256, recipe="mxf4xmxf4")
    config: Any = choose(problem, Target.typical("sm_100a"), 64, block_m=block_m, block_k=block_k)
    found = shape_of(config)
    assert (found.instructions.mma, found.k_block.channels) == (mma, block_k)


def test_instructions_of_bf16_are_fewer() -> None:
    """There are no scales to apply or to load."""
    problem = Problem(1024, 512, 16, 2, 2, 256, recipe="bf16xbf16")
    found = shape_of(choose(problem, Target.typical("sm_100a"), 64, block_m=64)).instructions
    assert (found.fc1, found.fc2, found.tile, found.mma, found.load) == (55, 16.5, 90, 46, 21)


@pytest.mark.parametrize(("shares", "warpgroups", "groups"), [(True, 2, 1), (True, 1, 1), (False, 2, 2), (False, 1, 1)])
def test_warpgroups_that_share_a_tile_finish_one_at_a_time(shares: bool, warpgroups: int, groups: int) -> None:
    config: Any = choose(Problem(1024, 512, 16, 2, 2, 256), Target.typical("sm_100a"), 64)
    assert replace(shape_of(config), shares_tile=shares, epilogue_warpgroups=warpgroups).groups == groups

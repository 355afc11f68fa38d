"""What is predicted: a launch of a kernel whose tiles and costs are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.layouts.smem_plan import DISPATCH_WARPS
from ..kernels.moe.sm90.config import Sm90Config
from ..kernels.moe.sm100.config import Sm100Config
from ..layouts.arith import ceil_div
from ..problem import Problem
from . import sm90, sm100
from .calibration import Calibration
from .clock import Launched, at_power, power
from .engine import Engine
from .launch import KBlocks, RankLoad, combine_bytes, counted
from .machine import Machine
from .sm100 import Shape
from .tile_table import TileTable
from .tiles import Tiles, TokenBlocks, tiles_of

Costs = Callable[[Calibration, float], tuple[TileTable, Machine]]
"""What tiles take, and what they run on, at a clock."""


def pull_rounds(config: MegaMoeConfig) -> int:
    """Rounds in which a dispatch warp of one of this package's kernels moves a token's row."""
    row, plan = config.problem.formats.activations.row_bytes(config.problem.hidden), config.smem
    return ceil_div(row, plan.pull_chunk * plan.pull_slots)


@dataclass(frozen=True)
class Subject:
    """A launch to predict: of any kernel whose tiles and costs are known, with stages of `block_k` channels, whose `dispatch_warps` of each
    SM move a token's row in `pull_rounds` rounds."""

    problem: Problem
    load: RankLoad
    block_m: int
    block_k: int
    num_sms: int
    costs: Costs
    pull_rounds: int = 1
    dispatch_warps: int = DISPATCH_WARPS

    @classmethod
    def of(cls, config: MegaMoeConfig, load: RankLoad) -> Subject:
        if isinstance(config, Sm90Config):
            return cls.of_sm90(config, load)
        assert isinstance(config, Sm100Config)
        return replace(cls.of_sm100(sm100.shape_of(config), tiles_of(config, load.counts), load), pull_rounds=pull_rounds(config))

    @classmethod
    def of_sm90(cls, config: Sm90Config, load: RankLoad) -> Subject:
        def costs(calibration: Calibration, clock: float) -> tuple[TileTable, Machine]:
            return sm90.tile_table(config, load, calibration, clock), sm90.machine(config, load, calibration, clock)

        return cls(config.problem, load, config.block_m, config.block_k, config.num_sms, costs, pull_rounds(config), config.dispatch_warps)

    @classmethod
    def of_sm100(cls, shape: Shape, tiles: Tiles, load: RankLoad) -> Subject:
        def costs(calibration: Calibration, clock: float) -> tuple[TileTable, Machine]:
            return sm100.tile_table(shape, tiles, load, calibration, clock), sm100.machine(shape, load, calibration, clock)

        return cls(shape.problem, load, shape.block_m, shape.k_block.channels, shape.num_sms, costs)

    def launch(self, calibration: Calibration, clock: float) -> Launched:
        """At a clock in GHz."""
        tiles, machine = self.costs(calibration, clock)
        blocks = TokenBlocks.of(self.load.counts, self.block_m)
        pool = KBlocks.of(self.problem, self.block_k).pool(
            self.problem, self.load, blocks, calibration, self.dispatch_warps * self.num_sms, self.pull_rounds
        )
        start = counted(calibration, self.load)
        run = Engine(tiles, pool, machine, start).run()
        in_the_end = combine_bytes(self.problem, self.load)
        combine = in_the_end / calibration.hbm
        us = run.end + combine + calibration.tail
        return Launched(clock, us, power(run, us, in_the_end, calibration, clock), run, start, float(pool.pulled[-1]), combine, in_the_end)

    def predict(self, calibration: Calibration, first: float | None = None) -> Launched:
        """At the clock that the GPU's power allows; `first` is a clock that is near."""
        return at_power(lambda clock: self.launch(calibration, clock), calibration, first)

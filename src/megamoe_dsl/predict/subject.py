"""What is predicted: a launch of a kernel whose tiles and costs are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernels.mega_moe.config import MegaMoeConfig
from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm100.config import Sm100Config
from ..problem import Problem, ProblemError
from . import sm90, sm100
from .calibration import Calibration
from .clock import Launched, at_power, power
from .engine import Engine
from .launch import KBlocks, RankLoad, combine_bytes, counted, pull_warps
from .machine import Machine
from .sm100 import Shape
from .tile_table import TileTable
from .tiles import Tiles, TokenBlocks, tiles_of

RECIPES = ("fp8xfp8", "fp8xfp4")
Costs = Callable[[Calibration, float], tuple[TileTable, Machine]]
"""What tiles take, and what they run on, at a clock."""


@dataclass(frozen=True)
class Subject:
    """A launch to predict: of any kernel whose tiles and costs are known."""

    problem: Problem
    load: RankLoad
    block_m: int
    num_sms: int
    costs: Costs

    @classmethod
    def of(cls, config: MegaMoeConfig, load: RankLoad) -> Subject:
        """Of one of this package's kernels.  Raises `ProblemError` for a recipe that nothing was fitted to."""
        if config.problem.recipe not in RECIPES:
            raise ProblemError("recipe", config.problem.recipe, "one that the model was fitted to: " + ", ".join(RECIPES))
        if isinstance(config, Sm90Config):
            return cls.of_sm90(config, load)
        assert isinstance(config, Sm100Config)
        return cls.of_sm100(sm100.shape_of(config), tiles_of(config, load.counts), load)

    @classmethod
    def of_sm90(cls, config: Sm90Config, load: RankLoad) -> Subject:
        """Of the SM90 kernel."""

        def costs(calibration: Calibration, clock: float) -> tuple[TileTable, Machine]:
            return sm90.tile_table(config, load, calibration, clock), sm90.machine(config, load, calibration, clock)

        return cls(config.problem, load, config.block_m, config.num_sms, costs)

    @classmethod
    def of_sm100(cls, shape: Shape, tiles: Tiles, load: RankLoad) -> Subject:
        """Of an SM100 kernel, whoever wrote it."""

        def costs(calibration: Calibration, clock: float) -> tuple[TileTable, Machine]:
            return sm100.tile_table(shape, tiles, load, calibration, clock), sm100.machine(shape, load, calibration, clock)

        return cls(shape.problem, load, shape.block_m, shape.num_sms, costs)

    def launch(self, calibration: Calibration, clock: float) -> Launched:
        """At a clock in GHz."""
        tiles, machine = self.costs(calibration, clock)
        blocks = TokenBlocks.of(self.load.counts, self.block_m)
        pool = KBlocks.of(self.problem).pool(self.problem, self.load, blocks, calibration, pull_warps(self.num_sms))
        start = counted(calibration, self.load)
        run = Engine(tiles, pool, machine, start).run()
        in_the_end = combine_bytes(self.problem, self.load)
        combine = in_the_end / calibration.hbm
        us = run.end + combine + calibration.tail
        return Launched(clock, us, power(run, us, in_the_end, calibration, clock), run, start, float(pool.pulled[-1]), combine, in_the_end)

    def predict(self, calibration: Calibration, first: float | None = None) -> Launched:
        """At the clock that the GPU's power allows; `first` is a clock that is near."""
        return at_power(lambda clock: self.launch(calibration, clock), calibration, first)

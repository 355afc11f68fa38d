"""How long a launch takes, at which clock and power, and which resources limit it.

A launch that is repeated runs at the highest clock at which its power is within the GPU's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.layouts.smem_plan import DISPATCH_WARPS
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.layouts.arith import ceil_div
from megamoe_dsl.schedule.fused_moe import HostTable

from . import sm90, sm100
from .calibration import Calibration
from .engine import Engine, Run
from .launch import KBlocks, RankLoad, Tiles, combine_bytes, counted, tiles_of
from .sm100 import Shape

LOWEST = 0.8  # GHz
CLOSE = 0.005  # of the power
RUNS = 4
HALVINGS = 20
BUSY = ("HBM", "L2", "NVLink", "tensor cores")
BETTER = 1.2
FASTER = 1 / BETTER
LEAST = 0.005  # Smallest gain that is reported.
RESOURCES = {
    "HBM": {"hbm": BETTER},
    "L2": {"l2_per_clock": BETTER},
    "NVLink": {"nvlink": BETTER},
    "tensor cores": {"efficiency": BETTER, "rows": FASTER, "rows_token": FASTER, "columns": FASTER},
    "power": {"power": BETTER},
    "epilogues": {"fc1_epilogue": FASTER, "fc2_epilogue": FASTER, "epilogue_clocks": FASTER, "tile": FASTER},
    "latency": {"hbm_latency": FASTER, "pull": FASTER},
    "start and end": {"start": FASTER, "tail": FASTER},
}
"""By resource, factors for values of the calibration and of its `kernel` that make the resource a fifth better."""
NO_PREFERENCE = 0.05  # Of the smaller time: the model does not separate closer choices.


@dataclass(frozen=True)
class Launched:
    """A launch of `subject` at a clock in GHz: its duration in microseconds and its power in watts."""

    subject: Subject
    calibration: Calibration
    clock: float
    us: float
    watts: float
    run: Run
    start: float  # when counts are known
    pulled: float  # when the last token has been pulled
    combine_bytes: float  # of the end's traffic

    @property
    def busy(self) -> dict[str, float]:
        """Utilization of each resource of `BUSY`: its time at full rate over the launch's."""
        one, run = self.calibration, self.run
        needed = (
            (run.hbm_bytes + run.written + self.combine_bytes) / one.hbm,
            (run.l2_bytes + one.l2_fill * (run.hbm_bytes + run.written)) / (one.l2_per_clock * self.clock * 1e3),
            run.nvlink_bytes / one.nvlink,
            run.multiplying / run.workers,
        )
        return {name: us / self.us for name, us in zip(BUSY, needed, strict=True)}

    @property
    def gains(self) -> dict[str, float]:
        """Share of the time that the launch saves if a resource is a fifth better, largest first; without shares below `LEAST`."""
        shares = {}
        for name, factors in RESOURCES.items():
            if name != "power" or self.clock != self.calibration.clock:
                better = self.subject.predict(multiplied(self.calibration, factors), self.clock)
                shares[name] = 1 - better.us / self.us
        return {name: shares[name] for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] >= LEAST}


def multiplied(calibration: Calibration, factors: Mapping[str, float]) -> Calibration:
    """The calibration with values multiplied by the factors of their names, also those of its `kernel`."""
    kernel = {name: value * factors.get(name, 1.0) for name, value in calibration.kernel.items()}
    own = {name: getattr(calibration, name) * factor for name, factor in factors.items() if hasattr(calibration, name)}
    return replace(calibration, **own, kernel=kernel)


def power(run: Run, us: float, combine_bytes: float, calibration: Calibration, clock: float) -> float:
    """Watts: static power, energy of multiplications, and energy of HBM traffic."""
    multiplying = run.energy * calibration.multiply_energy * (clock / calibration.clock) ** calibration.energy_exponent
    moving = (run.hbm_bytes + run.written + combine_bytes) * calibration.hbm_energy
    return calibration.static_power + (multiplying + moving) / (us * 1e-6)


def at_power(launch: Callable[[float], Launched], calibration: Calibration, first: float | None = None) -> Launched:
    """The launch at the highest clock within the power limit; clocks to try scale only the tensor cores' time."""
    found = launch(calibration.clock if first is None else first)
    for _ in range(RUNS):
        if abs(found.watts - calibration.power) < CLOSE * calibration.power:
            return found
        if (clock := expected_clock(found, calibration)) == found.clock:
            return found
        found = launch(clock)
    return found


def expected_clock(found: Launched, calibration: Calibration) -> float:
    """The clock at which the launch would reach the power limit, if only its tensor cores' time changed."""
    busy = found.run.multiplying / found.run.workers

    def too_much(clock: float) -> bool:
        us = found.us + busy * (found.clock / clock - 1)
        return power(found.run, us, found.combine_bytes, calibration, clock) > calibration.power

    low, high = LOWEST, calibration.clock
    if not too_much(high):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_much(middle) else (middle, high)
    return low


@dataclass(frozen=True)
class Subject:
    """A launch of a kernel with known tiles.  Each of `dispatch_warps` pulls a token's row in `pull_rounds` chunks."""

    shape: Shape | Sm90Config
    tiles: Tiles
    load: RankLoad
    pull_rounds: int = 1
    dispatch_warps: int = DISPATCH_WARPS

    @classmethod
    def of(cls, config: MegaMoeConfig, load: RankLoad) -> Subject:
        """A launch of this package's kernel."""
        tiles = tiles_of(config, load.counts)
        if isinstance(config, Sm100Config):
            return cls(sm100.shape_of(config), tiles, load)
        assert isinstance(config, Sm90Config)
        row, plan = config.problem.formats.activations.row_bytes(config.problem.hidden), config.smem
        return cls(config, tiles, load, ceil_div(row, plan.pull_chunk * plan.pull_slots), config.warps.dispatch)

    def launch(self, calibration: Calibration, clock: float) -> Launched:
        """At a clock in GHz."""
        shape, load, problem = self.shape, self.load, self.shape.problem
        model: Any = sm100 if isinstance(shape, Shape) else sm90
        tiles, machine = model.tile_table(shape, self.tiles, load, calibration, clock), model.machine(shape, load, calibration, clock)
        blocks, warps = HostTable.of(load.counts, shape.block_m), self.dispatch_warps * shape.num_sms
        pool = KBlocks.of(problem, shape.block_k).pool(problem, load, blocks, calibration, warps, self.pull_rounds)
        start = counted(calibration, load)
        run = Engine(tiles, pool, machine, start).run()
        in_the_end = combine_bytes(problem, load)
        us = run.end + in_the_end / calibration.hbm + calibration.tail
        watts = power(run, us, in_the_end, calibration, clock)
        return Launched(self, calibration, clock, us, watts, run, start, float(pool.pulled[-1]), in_the_end)

    def predict(self, calibration: Calibration, first: float | None = None) -> Launched:
        return at_power(lambda clock: self.launch(calibration, clock), calibration, first)


def prefers(one: float, other: float) -> bool | None:
    """Whether the first of two predicted times is preferred; None for no preference."""
    if abs(one - other) <= NO_PREFERENCE * min(one, other):
        return None
    return one < other

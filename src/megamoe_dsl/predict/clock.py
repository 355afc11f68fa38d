"""The clock of a launch that is repeated without end: the highest at which its power is within the GPU's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .calibration import Calibration
from .engine import Run

LOWEST = 0.8  # GHz
CLOSE = 0.005  # of the power
RUNS = 4
HALVINGS = 20


@dataclass(frozen=True)
class Launched:
    """A launch at a clock in GHz, from its begin to its end in microseconds, and its power in watts.

    start     when counts are known
    pulled    when the last token has been pulled
    combine   us of the end's traffic at full bandwidth, and its bytes
    """

    clock: float
    us: float
    watts: float
    run: Run
    start: float
    pulled: float
    combine: float
    combine_bytes: float


def power(run: Run, us: float, combine_bytes: float, calibration: Calibration, clock: float) -> float:
    """Watts: what is always there, what multiplies, and what moves bytes from and to HBM."""
    multiplying = run.energy * calibration.multiply_energy * (clock / calibration.clock) ** calibration.energy_exponent
    moving = (run.hbm_bytes + run.written + combine_bytes) * calibration.hbm_energy
    return calibration.static_power + (multiplying + moving) / (us * 1e-6)


def at_power(launch: Callable[[float], Launched], calibration: Calibration, first: float | None = None) -> Launched:
    """The launch at the highest clock, or at the one where its power meets the GPU's.

    Between launches, what scales with the clock is taken to be the tensor cores' time of the last one.
    """
    found = launch(calibration.clock if first is None else first)
    for _ in range(RUNS):
        if found.clock == calibration.clock and found.watts <= calibration.power:
            return found
        if abs(found.watts - calibration.power) < CLOSE * calibration.power:
            return found
        clock = expected_clock(found, calibration)
        if clock == found.clock:
            return found
        found = launch(clock)
    return found


def expected_clock(found: Launched, calibration: Calibration) -> float:
    """Where the launch's power would meet the GPU's, if its time changed as its tensor cores' does."""
    low, high = LOWEST, calibration.clock
    if expected_power(found, calibration, high) <= calibration.power:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if expected_power(found, calibration, middle) > calibration.power:
            high = middle
        else:
            low = middle
    return low


def expected_power(found: Launched, calibration: Calibration, clock: float) -> float:
    """At another clock than the launch's."""
    busy = found.run.multiplying / found.run.workers
    us = found.us + busy * (found.clock / clock - 1)
    return power(found.run, us, found.combine_bytes, calibration, clock)

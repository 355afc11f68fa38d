"""What the model says of one of this package's kernels at one point, and which of several choices it prefers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.moe.config import MegaMoeConfig
from .calibration import Calibration
from .clock import Launched
from .launch import RankLoad
from .limits import Gain, gains
from .subject import Subject

BUSY = ("HBM", "L2", "NVLink", "tensor cores")
"""What a launch keeps busy."""


@dataclass(frozen=True)
class Prediction:
    """A configuration with the load of a rank, and the launch that comes out."""

    config: MegaMoeConfig
    load: RankLoad
    calibration: Calibration
    launched: Launched

    @classmethod
    def of(cls, config: MegaMoeConfig, load: RankLoad, calibration: Calibration) -> Prediction:
        """At the clock that the GPU's power allows."""
        return cls(config, load, calibration, Subject.of(config, load).predict(calibration))

    @property
    def us(self) -> float:
        return self.launched.us

    @property
    def busy(self) -> dict[str, float]:
        """Share of the time, by `BUSY`, that each would need at its full rate."""
        found, one = self.launched, self.calibration
        run = found.run
        l2 = run.l2_bytes + one.l2_fill * (run.hbm_bytes + run.written)
        needed = (
            (run.hbm_bytes + run.written + found.combine_bytes) / one.hbm,
            l2 / (one.l2_per_clock * found.clock * 1e3),
            run.nvlink_bytes / one.nvlink,
            run.multiplying / run.workers,
        )
        return {name: us / found.us for name, us in zip(BUSY, needed, strict=True)}

    @property
    def limits(self) -> list[Gain]:
        """What a better resource would save, the most first."""
        return gains(Subject.of(self.config, self.load), self.calibration, self.launched)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values, without its limits."""
        found = self.launched
        return {"tokens": self.load.tokens, "us": found.us, "clock_ghz": found.clock, "watts": found.watts, "busy": self.busy}


NO_PREFERENCE = 0.05
"""Of the smaller time: choices that differ by less are equally good as far as the model knows."""
PRUNED = 0.15
"""Choices that are predicted to be so much slower than the fastest are not worth timing."""


def prefers(one: float, other: float) -> bool | None:
    """Whether the first of two predicted times is worth choosing; None for no preference."""
    if abs(one - other) <= NO_PREFERENCE * min(one, other):
        return None
    return one < other


def worth_timing(times: Sequence[float]) -> list[bool]:
    """Which choices are, by their predicted times."""
    return [time <= (1 + PRUNED) * min(times) for time in times]

"""What the model says of one of this package's kernels at one point, what else could be chosen there, and which choice it prefers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ..config_error import ConfigError
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


SHALLOWEST = 2


def choices(config: MegaMoeConfig, num_tokens: int) -> list[MegaMoeConfig]:
    """A configuration and those around it: every other tile, other leads of Linear1, a ring with one stage less, and with CTAs alone or in
    pairs, or another length of the epilogue's passes, where there is a choice."""
    return list(dict.fromkeys([config, *_around(config, num_tokens)]))


def _around(config: MegaMoeConfig, num_tokens: int) -> Iterator[MegaMoeConfig]:
    kind, local, names = type(config), config.problem.experts_per_rank, {one.name for one in fields(config)}
    for block_m in kind.tiles_of(config.problem):
        yield from _possible(partial(kind.choose, config.problem, num_tokens, num_sms=config.num_sms, block_m=block_m))
    for lookahead in (config.lookahead // 4, config.lookahead // 2, 2 * config.lookahead, 4 * config.lookahead, local):
        if 1 <= lookahead <= local:
            yield config.replace(lookahead=lookahead)
    yield config.replace(num_stages=max(SHALLOWEST, config.num_stages - 1))
    for name, values in (("cluster", (1, 2)), ("store_block_m", (16, 32))):
        for value in values if name in names else ():
            yield from _possible(partial(config.replace, **{name: value}, num_stages=0))


def _possible(make: Callable[[], MegaMoeConfig]) -> Iterator[MegaMoeConfig]:
    """What can be made, if it can."""
    try:
        yield make()
    except ConfigError:
        return

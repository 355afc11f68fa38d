"""Lanes of a warp that know the same, and what lanes can tell others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .access_record import CODE_SHIFT, FULL, HAPPENED, LAST, READS, members
from .clock import Clock
from .lane_agents import LaneAgents


class Strand:
    """Lanes `bits` of a warp, which know the same."""

    __slots__ = ("bits", "clock")

    def __init__(self, bits: int, clock: Clock) -> None:
        self.bits, self.clock = bits, clock

    def has(self, records: NDArray[np.int64] | int) -> NDArray[np.bool_] | np.bool_:
        """Which accesses are of this strand's lanes alone."""
        codes = np.asarray(records) >> CODE_SHIFT & LAST
        return np.array([members(code) & ~self.bits == 0 for code in range(LAST + 1)])[codes]


class Said(NamedTuple):
    """What lanes can say of their warp at one moment.

    `done` says for each agent until when lanes have done its work, each its part, and whether that needs an entry of a single lane;
    `read` says until when it is known that all lanes have read.
    """

    done: tuple[tuple[LaneAgents, int, bool], ...]
    read: tuple[tuple[LaneAgents, int], ...]

    def write(self, clock: Clock, bits: int, width: Callable[[], int]) -> Clock:
        """Into a clock, as lanes `bits` say it."""
        entries = [(agents.of(bits) if needed or bits == FULL else agents.having(bits), when) for agents, when, needed in self.done]
        clock.fit(width())
        clock.raise_to((READS,), [(agents.having(FULL), when) for agents, when in self.read])
        clock.raise_to((HAPPENED, READS), entries)
        return clock

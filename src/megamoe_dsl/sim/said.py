"""What lanes of a warp can tell others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .clock import Clock
from .clock_rows import HAPPENED, READS
from .lane_agents import LaneAgents
from .lane_codes import FULL


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

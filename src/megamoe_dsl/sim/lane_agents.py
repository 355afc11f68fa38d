"""Agents of the race detector, and the lanes of one.

A warp is one agent while its lanes act together. A clock knows what all of them have done at the agent's own entry, and what some
have done beyond that at an entry of theirs, which exists from the first time that these lanes act without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from .access_record import AGENT_MASK, FULL, lanes_of, members
from .errors import SimError
from .geometry import Geometry

MAX_AGENTS = (AGENT_MASK + 1) // 2
"""Warps and engines; as many numbers are left for lanes that act alone."""


def agents_needed(launches: Iterable[Geometry]) -> int:
    """The least number of agents that a run of these launches with the race detector needs: one for every warp.

    Engines come on top of it when they are first used (the TMA loads of an mbarrier, both sides of a warp's bulk stores, tensor pipes).
    """
    return sum(launch.ctas * launch.warps for launch in launches)


def check_agents(needed: int, so_far: bool = True, lanes: int = 0) -> None:
    """Raise SimError when the race detector cannot have that many agents, or that many lanes beside them."""
    if needed > MAX_AGENTS or needed + lanes > AGENT_MASK + 1:
        what = "so far" if so_far else "for the warps alone"
        remedy = "run fewer or smaller CTAs, ranks or launches at a time, or turn the detector off (race=False)"
        what += f" and {lanes} lanes" if lanes else ""
        raise SimError(f"race detector: {needed} agents {what}, the limit is {MAX_AGENTS}: {remedy}")


Entries = NDArray[np.int64]
_MOST = 8
"""Masks of several lanes that get an entry; of lanes in others, each has one."""


class LaneAgents:
    """Entries of an agent and of its lanes: `groups` has those of the masks that have acted. `add(name)` makes a new agent."""

    def __init__(self, agent: int, add: Callable[[str], int]) -> None:
        self.agent, self._add = agent, add
        self.groups: dict[int, int] = {}
        self.last = 0  # when a lane last did something that it must answer for
        self.present = FULL  # lanes that there are
        self._inside: dict[int, Entries] = {}
        self._asked: set[int] = set()

    def lane(self, lane: int) -> int:
        """The entry of a lane."""
        return self._entry(1 << lane)

    def _entry(self, bits: int) -> int:
        if (entry := self.groups.get(bits)) is None:
            entry = self.groups[bits] = self._add(f" lanes {bits:#x}" if bits & (bits - 1) else f" lane {bits.bit_length() - 1}")
            self._inside.clear()
        return entry

    def of(self, bits: int) -> Entries:
        """The entries that say what lanes `bits` have done."""
        if bits != FULL and bits not in self._asked:
            self._asked.add(bits)
            several = sum(1 for mask in self.groups if mask & (mask - 1))
            for part in [bits] if not bits & (bits - 1) or several < _MOST else [1 << lane for lane in lanes_of(bits)]:
                self._entry(part)
        return self.having(bits)

    def having(self, bits: int) -> Entries:
        """The entries that there are of lanes `bits`, and of no others."""
        if (entries := self._inside.get(bits)) is None:
            own = [self.agent] if bits == FULL else []
            inside = [entry for mask, entry in self.groups.items() if not mask & ~bits]
            entries = self._inside[bits] = np.array(own + inside, np.int64)
        return entries

    def known(self, row: NDArray[np.int32], code: int, until: int) -> bool:
        """Whether a clock with these entries knows what the lanes of `code` had done `until` then. What it knows of all is noted there."""
        if row.item(self.agent) >= until:
            return True
        covered, least = 0, 1 << 31
        for mask, entry in self.groups.items():
            if (when := row.item(entry)) >= until:
                covered, least = covered | mask, min(least, when)
        if not self.present & ~covered:
            row[self.agent] = least
        return not members(code) & self.present & ~covered

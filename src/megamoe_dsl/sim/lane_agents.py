"""The lanes of one agent of the race detector.

A warp is one agent while its lanes act together. A clock knows what all of them have done at the agent's own entry, and what one lane
has done beyond that at an entry of the lane's, which exists from the first time that the lane acts alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .lane_codes import FULL, lanes_of, members

LANES = 32
Entries = NDArray[np.int64]
_NONE: Entries = np.zeros(0, np.int64)


class LaneAgents:
    """Entries of an agent and of its lanes. `add(name)` makes a new agent; `entries` has an entry per lane, the agent's own for those
    without, and the agent's own last."""

    def __init__(self, agent: int, add: Callable[[str], int]) -> None:
        self.agent, self._add = agent, add
        self.entries: Entries = np.full(LANES + 1, agent)
        self.alone = False  # whether any lane has an entry
        self.last = 0  # when a lane last did something that it must answer for
        self.present = FULL  # lanes that there are
        self._of: dict[int, Entries] = {}
        self._all: Entries | None = self.entries[LANES:]

    def lane(self, lane: int) -> int:
        """The entry of a lane."""
        if (entry := self.entries.item(lane)) == self.agent:
            entry = self.entries[lane] = self._add(f" lane {lane}")
            self.alone, self._all = True, None
        return entry

    def of(self, bits: int) -> Entries:
        """The entries that say what lanes `bits` have done."""
        if bits == FULL:
            if self._all is None:
                self._all = np.unique(self.entries)
            return self._all
        if (entries := self._of.get(bits)) is None:  # which stay as they are
            entries = self._of[bits] = np.array([self.lane(lane) for lane in lanes_of(bits)])
        return entries

    def having(self, bits: int) -> Entries:
        """The entries of lanes `bits`, of those that have one."""
        if not self.alone:
            return _NONE
        if (entries := self._of.get(bits)) is None:
            entries = np.array([entry for lane in lanes_of(bits) if (entry := self.entries.item(lane)) != self.agent], np.int64)
        return entries

    def known(self, row: NDArray[np.int32], code: int, until: int) -> bool:
        """Whether a clock with these entries knows what the lanes of `code` had done `until` then. What all have done is noted there."""
        if row.item(self.agent) >= until:
            return True
        if not self.alone:
            return False
        lanes = members(code) & self.present
        least = row.take(self.entries[:LANES] if lanes == FULL else self.entries[list(lanes_of(lanes))]).min()
        if lanes == self.present and least > row.item(self.agent):
            row[self.agent] = least
        return bool(least >= until)

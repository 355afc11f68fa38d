"""Vector clocks of the race detector.

One clock per strand of a warp and per synchronisation object. Row HAPPENED counts the writes that happened before; rows ASYNC_GLOBAL and
ASYNC_SHARED count what a `fence.proxy.async` has also made visible to the async proxy, in global and in shared memory (PTX ISA, "Memory
Consistency Model", "Proxies"). Row READS counts the reads that happened before: a warp barrier passes on writes, but not another
lane's reads (see `lane_order`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

HAPPENED, ASYNC_GLOBAL, ASYNC_SHARED, READS = 0, 1, 2, 3
ROWS = 4


class Clock:
    """A vector clock; widens by itself as agents appear."""

    __slots__ = ("rows",)

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self.rows = rows

    def fit(self, width: int) -> None:
        """Make room for `width` agents."""
        if (have := self.rows.shape[1]) < width:
            self.rows = np.concatenate([self.rows, np.zeros((ROWS, width - have), np.int32)], axis=1)

    def join(self, other: Clock) -> None:
        """Everything `other` knows is now known here too."""
        have, want = self.rows.shape[1], other.rows.shape[1]
        if have < want:
            self.fit(want)
        elif want < have:
            other.fit(have)
        np.maximum(self.rows, other.rows, out=self.rows)

    def copy(self) -> Clock:
        """A snapshot."""
        return Clock(self.rows.copy())

    def raise_to(self, rows: Iterable[int], agents: NDArray[np.int64], value: int) -> None:
        """Let rows know these agents up to `value` at least."""
        one = int(agents[0]) if len(agents) == 1 else None
        for row in rows:
            known = self.rows[row]
            if one is None:
                known[agents] = np.maximum(known[agents], value)
            elif known[one] < value:
                known[one] = value

    def at(self, agent: int) -> int:
        """What this clock knows of `agent`."""
        return int(self.rows[HAPPENED, agent])

    def set(self, agent: int, value: int) -> None:
        """Let the clock know `agent` up to `value`, in every row (the agent is an engine of the async proxy itself)."""
        self.rows[:, agent] = value

    def knows(self, other: Clock) -> bool:
        """Whether `other` adds nothing."""
        if self.rows.shape != other.rows.shape:
            width = max(self.rows.shape[1], other.rows.shape[1])
            self.fit(width)
            other.fit(width)
        return not bool((other.rows[HAPPENED] > self.rows[HAPPENED]).any())

    def publish_to_async(self, in_global: bool, in_shared: bool) -> None:
        """`fence.proxy.async`, for either or both spaces."""
        rows = self.rows
        if in_global:
            np.maximum(rows[ASYNC_GLOBAL], rows[HAPPENED], out=rows[ASYNC_GLOBAL])
        if in_shared:
            np.maximum(rows[ASYNC_SHARED], rows[HAPPENED], out=rows[ASYNC_SHARED])

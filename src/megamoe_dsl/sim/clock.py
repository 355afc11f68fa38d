"""Vector clocks of the race detector.

One clock per strand of a warp and per synchronization object; `clock_rows` says what it knows of every agent.

Most clocks are copies of others that never change, so that a copy shares the entries of the original until one of them does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .access_record import ASYNC_GLOBAL, ASYNC_SHARED, HAPPENED, QUICK, ROWS


class Clock:
    """A vector clock; widens by itself as agents appear. `rows` is for reading; who writes asks `own` for it."""

    __slots__ = ("_shared", "rows")

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self.rows = rows
        self._shared = False

    def own(self) -> NDArray[np.int32]:
        """The entries, which no other clock has now."""
        if self._shared:
            self.rows, self._shared = self.rows.copy(), False
        return self.rows

    def fit(self, width: int) -> None:
        """Make room for `width` agents."""
        have = self.rows.shape[1]
        if have < width:
            rows = np.zeros((ROWS, width), np.int32)
            rows[:, :have] = self.rows
            self.rows, self._shared = rows, False

    def join(self, other: Clock) -> None:
        """Everything `other` knows is now known here too."""
        if other.rows is self.rows:
            return
        have, want = self.rows.shape[1], other.rows.shape[1]
        if have < want:
            self.fit(want)
        elif want < have:
            other.fit(have)
        if self._shared:
            self.rows, self._shared = np.maximum(self.rows, other.rows), False
        else:
            np.maximum(self.rows, other.rows, out=self.rows)

    def copy(self) -> Clock:
        out = Clock(self.rows)
        out._shared = self._shared = True
        return out

    def raise_to(self, rows: Sequence[int], known: list[tuple[NDArray[np.int64], int]]) -> None:
        """Let rows know these agents up to a time at least, each their own."""
        QUICK.raise_to(self.own(), rows, known)

    def at(self, agent: int) -> int:
        """What this clock knows of `agent`."""
        return self.rows.item(HAPPENED, agent)

    def set(self, agent: int, value: int) -> None:
        """Let the clock know `agent` up to `value`, in every row (the agent is an engine of the async proxy itself)."""
        self.own()[:, agent] = value

    def knows(self, other: Clock) -> bool:
        if self.rows.shape != other.rows.shape:
            width = max(self.rows.shape[1], other.rows.shape[1])
            self.fit(width)
            other.fit(width)
        return not bool((other.rows[HAPPENED] > self.rows[HAPPENED]).any())

    def publish_to_async(self, in_global: bool, in_shared: bool) -> None:
        """`fence.proxy.async`, for either or both spaces."""
        rows = self.own()
        if in_global:
            np.maximum(rows[ASYNC_GLOBAL], rows[HAPPENED], out=rows[ASYNC_GLOBAL])
        if in_shared:
            np.maximum(rows[ASYNC_SHARED], rows[HAPPENED], out=rows[ASYNC_SHARED])

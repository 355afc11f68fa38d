"""A thread of the warpgroups that multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32


@dataclass(frozen=True)
class MathThread:
    """`group` counts the tile's two warpgroups, `warp` the warps of a warpgroup; both are uniform in a warp."""

    group: Int32
    warp: Int32
    lane: Int32

    @property
    def pair(self) -> Any:
        """The first of the thread's two columns in every group of 8 columns of an accumulator."""
        return (self.lane & 3) * 2

    @property
    def row(self) -> Any:
        """The first of the thread's two rows among the warp's 16 rows of an accumulator; the other is 8 further."""
        return self.lane >> 2

"""A position in a ring of stages: index and phase parity, advanced functionally."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Int32

from ..layouts.arith import select


@dataclass(frozen=True)
class Ring:
    """`phase` is the parity of the completed phase that a consumer waits for; a producer waits for `phase ^ 1`."""

    depth: cutlass.Constexpr[int]
    index: Int32
    phase: Int32

    @staticmethod
    def start(depth: int) -> Ring:
        """The first stage, in the first phase."""
        return Ring(depth, Int32(0), Int32(0))

    def next(self) -> Ring:
        """The stage after this one; the parity changes where the ring wraps."""
        wraps = self.index == self.depth - 1
        return Ring(self.depth, select(wraps, Int32(0), self.index + 1), select(wraps, self.phase ^ 1, self.phase))

    def previous(self) -> Ring:
        """The stage before this one; for its addresses, the phase is not said."""
        return Ring(self.depth, select(self.index == 0, Int32(self.depth - 1), self.index - 1), Int32(0))

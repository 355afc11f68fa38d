"""A thread of the warpgroups that multiply, and its sums of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...device.ring import Stage


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


@dataclass(frozen=True)
class PromotedSums:
    """A thread's sums of a tile, in `parts` that the tensor core computes one after another, and the registers of the temporary
    accumulator."""

    parts: tuple[tuple[Float32, ...], ...]
    partial: tuple[Float32, ...]

    @staticmethod
    def zero(parts: int, values: int) -> PromotedSums:
        part = tuple(Float32(0.0) for _ in range(values))
        return PromotedSums((part,) * parts, part)


@cute.jit
def multiply_tile(stage: Stage, me: Any, scales: Any, k_blocks: Int32):
    """Multiplies `k_blocks` > 0 stages with the share's `multiply`; the first must be full.  Returns the sums, one tuple for each part of
    the share, and the stage after the last."""
    acc = me.zero()
    for k in cutlass.range(k_blocks, unroll=1):
        acc, stage = me.multiply(stage, acc, scales, k, k + 1 < k_blocks)
    return acc.parts, stage

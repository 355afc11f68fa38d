"""A thread of the warpgroups that multiply: its sums of a tile, and the scales of the tile's weights, one per 128 rows and 128 of K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ...device.memory import load_f32
from ...device.ring import Stage
from ...device.warp import shuffle_f32


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

    @cute.jit
    def multiply_tile(self: Any, stage: Stage, scales: Any, k_blocks: Int32):
        """Multiplies `k_blocks` > 0 stages with a share's `multiply`; the first must be full.  Returns the sums, one tuple for each part of
        the share, and the stage after the last."""
        acc = self.zero()
        for k in cutlass.range(k_blocks, unroll=1):
            acc, stage = self.multiply(stage, acc, scales, k, k + 1 < k_blocks)
        return acc.parts, stage


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


LANES = 32


@dataclass(frozen=True)
class ScaleMatrix:
    """f32 [row blocks, k_blocks] in global memory; `most_k_blocks` bounds `k_blocks`, which may be known at run time only."""

    address: Int64
    k_blocks: Int32
    most_k_blocks: cutlass.Constexpr[int]

    def load(self, row: Any, lane: Any) -> tuple[Float32, ...]:
        """A row of the matrix, spread over the lanes of a warp: lane l has K blocks l, l + 32, ..."""
        starts = range(0, self.most_k_blocks, LANES)
        return tuple(load_f32(self.address + Int64(row * self.k_blocks + cutlass.min(lane + s, self.k_blocks - 1)) * 4) for s in starts)


@dataclass(frozen=True)
class WeightScales:
    """One or two scales per K block, loaded before the K loop: a load in every K block would make the warp wait for it before it waits for
    the wgmma.  For as many kinds of weight rows of a warpgroup, each spread over the lanes by `ScaleMatrix.load`."""

    values: tuple[tuple[Float32, ...], ...]
    # the two kinds are gate and up, which alternate every 8 rows; if not, they are those before and after a multiple of 128
    alternating: Boolean

    def at(self, k: Any) -> list[Any]:
        out = []
        for parts in self.values:
            value = parts[0]
            for i, part in enumerate(parts[1:]):
                value = Float32(cutlass.select_(k >= LANES * (i + 1), part, value))
            out.append(shuffle_f32(value, k & (LANES - 1)))
        return out

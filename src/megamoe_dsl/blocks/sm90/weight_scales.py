"""FP32 scales of a tile's weights, one per 128 rows and 128 of K: loaded into registers before the K loop.

A load in every K block would make the warp wait for it before it waits for the wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64

from ...device.memory import load_f32
from ...device.warp import shuffle_f32

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
    """One or two scales per K block, for as many kinds of weight rows of a warpgroup, each spread over the lanes by `ScaleMatrix.load`.

    alternating  the two kinds are gate and up, which alternate every 8 rows; if not, they are those before and after a multiple of 128
    """

    values: tuple[tuple[Float32, ...], ...]
    alternating: Boolean

    def at(self, k: Any) -> list[Any]:
        """Scales of K block k."""
        out = []
        for parts in self.values:
            value = parts[0]
            for i, part in enumerate(parts[1:]):
                value = Float32(cutlass.select_(k >= LANES * (i + 1), part, value))
            out.append(shuffle_f32(value, k & (LANES - 1)))
        return out

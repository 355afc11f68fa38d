"""FP32 sums in registers, promoted out of the tensor core every 128 of K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...device.stage import Stage


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

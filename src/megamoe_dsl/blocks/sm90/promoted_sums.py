"""FP32 sums in registers, promoted out of the tensor core every 128 of K."""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Float32


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

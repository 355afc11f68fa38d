"""A token's y: its rows times their weights, added in FP32 in the order of its slots, eight channels a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int64, Uint32

from ..device.cast import pack_bf16, unpack_bf16
from ..device.memory import load_once_v4

PER_LANE = 8


@cute.jit
def load_row(address: cutlass.Constexpr[Callable[[], Int64]], there: Boolean, load: cutlass.Constexpr[Any] = load_once_v4):
    """Four words of a row; of one that is not `there` zeros: it is not read, nor is its address asked for."""
    words = (Uint32(0),) * 4
    if there:
        words = load(address())
    return words


@cute.jit
def add_row(total: tuple[Float32, ...], words: Any, there: Boolean, weight: Float32):
    """The sums so far and eight BF16 times `weight`, if they are `there`."""
    values = [value for word in words for value in unpack_bf16(word)]
    factor = Float32(cutlass.select_(there, weight, Float32(0.0)))
    return tuple(sum_so_far + value * factor for sum_so_far, value in zip(total, values, strict=True))


def packed_sum(total: Any) -> tuple[Any, ...]:
    return tuple(pack_bf16(total[i], total[i + 1]) for i in range(0, PER_LANE, 2))

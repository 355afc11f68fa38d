"""Results on their way from Linear2's epilogues to combine: what the epilogues send, and what combine adds.

BF16 results travel as they are.  E4M3 results have a UE8M0 scale per 128 channels: a result is rounded to BF16 first, and the scale is the
smallest power of two with amax <= 448 * scale, as that of the activations between the linears (quant.e4m3_scale_byte).

Source: pull request 28 of sgl-project's DeepGEMM (format, and which lanes agree on a scale).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from ...device import cast
from ...device.cast import add_bf16, fma, unpack_bf16
from ...device.memory import load_shared_u8, load_shared_v2, load_shared_v4, store_u8, store_u16, store_v2, store_v4
from ...device.warp import shuffle_xor_among, store_where
from .layouts.smem_plan import CombineRow, vector_address


@dataclass(frozen=True)
class Bf16Results:
    """`fused`: the GPU adds BF16 to FP32 in one instruction."""

    row: CombineRow
    fused: bool

    def send(self, place: Any, first: Any, lane: Any, words: Sequence[Any]) -> None:
        """A lane's 8 channels, BF16 in four words, to their place: byte `first` of a row."""
        store_where(self.row.holds(first), partial(store_v4, place, tuple(words)))

    def add(self, sums: Sequence[Any], slot: Any, lane: Any, vector: int, first_scale: Any, weight: Any = None) -> list[Any]:
        """The lane's sums of a vector of the piece in a slot, with the piece's values added, times a weight if there is one."""
        found: list[Any] = []
        for i, word in enumerate(load_shared_v4(vector_address(slot, lane, vector))):
            if weight is not None:
                found += [fma(value, weight, sums[2 * i + h]) for h, value in enumerate(unpack_bf16(word))]
                continue
            found += add_bf16(sums[2 * i], sums[2 * i + 1], word, self.fused)
        return found


LANES = 16
"""That share a scale: 8 channels each."""
FIRST_LANES = (1 << LANES) - 1


@dataclass(frozen=True)
class E4m3Results:
    """Results that travel as E4M3 with a scale per 128 channels."""

    row: CombineRow

    @cute.jit
    def send(self, place: Int64, first: Int64, lane: Int32, words: Sequence[Any]):
        """A lane's 8 channels, BF16 in four words, as codes to their place: byte `first` of a row; the first of the 16 lanes that have 128
        channels of a token also sends their scale.

        Only these 16 lanes exchange their maxima: the other half of the warp may be elsewhere, because its token does not exist.
        """
        members = Int32(FIRST_LANES) << (lane & LANES)
        amax = reduce(cast.abs_max_bf16, words)
        for mask in (8, 4, 2, 1):
            amax = cast.abs_max_bf16(amax, shuffle_xor_among(amax, mask, members))
        exponent = cast.scale_exponent(cast.larger_of_pair(amax))
        store_where(self.row.holds(first), partial(store_v2, place, *encode(words, exponent)))
        if (lane & (LANES - 1)) == 0:
            store_where(self.row.holds(first), partial(send_scales, self.row, place, first, exponent, 1))

    def add(self, sums: Sequence[Any], slot: Any, lane: Any, vector: int, first_scale: Any, weight: Any = None) -> list[Any]:
        """The lane's sums of a vector of the piece in a slot, with the piece's values added, times a weight if there is one; the
        piece's first scale has the shared address slot + `first_scale`."""
        scale = load_shared_u8(slot + first_scale + 2 * vector + (lane >> 4))
        factor = cast.f32_of_bits(scale << 23)
        values = [v for word in load_shared_v2(vector_address(slot, lane, vector, 1)) for v in cast.unpack_e4m3(word)]
        if weight is not None:
            return [cast.fma(value * factor, weight, old) for old, value in zip(sums, values, strict=True)]
        return [old + value * factor for old, value in zip(sums, values, strict=True)]


def send_scales(row: CombineRow, place: Any, first: Any, scales: Any, count: int) -> None:
    """One or two scales, `joined`, of the 128 channels from a place on, byte `first` of a row, and of the next 128."""
    store = store_u8 if count == 1 else store_u16
    store(place + ((first >> 7) - first + row.first_scale), scales)


def joined(exponents: Sequence[Any]) -> Any:
    """Bytes in one word, the first lowest."""
    return reduce(or_, (exponent << (8 * i) for i, exponent in enumerate(exponents)))


def encode(words: Sequence[Any], exponent: Any) -> list[Any]:
    """Pairs of BF16 over the scale of this exponent, four codes to a word.  The division is exact but for what is far below any code."""
    inverse = (Uint32(254) - exponent) * Uint32(0x00800080)  # twice, in BF16
    values = [value for word in words for value in cast.unpack_bf16(cast.multiply_bf16(word, inverse))]
    return [cast.pack_e4m3(*values[i : i + 4]) for i in range(0, len(values), 4)]

"""Activates a pass of tokens: from tensor memory to a tile in SMEM, from where a kernel stores it with TMA.

A warp holds 32 accumulator rows, gate and up interleaved by 8: 16 output channels.  Thread t has channels t / 4 and 8 + t / 4 of the warp
for tokens 2 (t % 4) and 2 (t % 4) + 1 of every 8.  Who computes a scale depends on the format:
- 32 channels share a scale: two warps exchange the maxima of their 16 channels in SMEM, and each computes the scale.
- 16 channels share a scale (NVFP4): it takes divisions, so a lane computes the scale of one of 32 tokens, and others get it by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...device import cast
from ...device.cast import E2M1_MAX, E4M3_MAX, abs_max, pack_bf16, pack_e2m1, pack_e4m3
from ...device.e2m1 import gather_rows
from ...device.memory import fence_async_shared, store_shared_v2, store_transposed_b8, store_transposed_b16, store_u8
from ...device.ptx import emit, emit_to_many
from ...device.tcgen05 import load_columns
from ...device.warp import shuffle_f32, shuffle_xor_f32, store_where
from ...hardware.operand_tile import CHANNELS_PER_SCALE
from ...layouts.arith import select
from ...recipe import BF16, E2M1, E4M3, Format
from ..quantize import divided, ue4m3_scale
from ..swiglu import activate
from .epilogue_tile import HALF_BYTES, chunk_address, fc1_store_address, packed_store_address, packed_token
from .results import ResultPart


@cute.jit
def finish_passes(part: ResultPart, rows: Any, form: cutlass.Constexpr[Format], maxima: Any, factors: Any):
    """Runs all passes of a warpgroup; outputs have the format `form`.  `maxima`: shared addresses of two maxima of the thread's first
    token, the warp's own and that of the warp with which it shares scales.  `rows` has the kernel's part of a pass from token `first` on:

    activated(first, sums)  the thread's activated channels of every 8 tokens (`activate_channels`)
    buffer(first)           shared address of the pass's tile, after a barrier of the warpgroup: nothing reads the tile any more
    has(row)                whether scales of this row of the tile are stored
    scale(row)              address of the scale of this row and the warp's channels, and bytes from it to the next row's
    send(first, buffer)     stores the finished tile; all threads call it
    """
    outputs, lane, pair = OUTPUTS[form.element], part.lane, (part.lane & 3) * 2
    for first in cutlass.range(part.first, part.valid, part.every * part.tokens, unroll=1):
        passed = rows.activated(first, load_columns(part.column + first, part.tokens // 8))
        packed: list[Any] = []
        if cutlass.const_expr(shares_scales(form)):
            # The warp's maximum of each of a thread's two tokens.
            peaks = [[cast.max_over_rows(cast.abs_max(values[q], values[2 + q])) for q in range(2)] for values in passed]
            share_maxima(maxima[0], lane, peaks)
        elif cutlass.const_expr(factors is not None):
            code, divisor = factors.scale(passed, lane)
            own = first + row_of_lane(lane)
            store_where(rows.has(own), partial(store_u8, rows.scale(own)[0], code))
            packed = packed_pass(passed, divisor, lane)
        else:
            packed = [outputs.pack(values) for values in passed]
        buffer = rows.buffer(first)
        if cutlass.const_expr(shares_scales(form)):
            at, pitch = rows.scale(first + pair)
            for g, values in enumerate(passed):
                exponents = joint_exponents(maxima[1], g, peaks[g], outputs.largest)
                for q, exponent in enumerate(exponents):
                    store = partial(store_where, rows.has(first + 8 * g + pair + q), partial(store_u8, at + (8 * g + q) * pitch, exponent))
                    store_where((lane < 4) & ((part.warp & 1) == 0), store)
                inverse = [cast.inverse_scale(one) for one in exponents]
                packed.append(outputs.pack([value * inverse[i & 1] for i, value in enumerate(values)]))
        outputs.store(buffer, part.warp, lane, packed)
        fence_async_shared()
        part.sync_group()
        rows.send(first, buffer)


def shares_scales(form: Format) -> bool:
    """Whether two warps hold the channels that share one scale."""
    return form.channels == CHANNELS_PER_SCALE


@dataclass(frozen=True)
class E2m1Outputs:
    """As `E4m3Outputs`, for E2M1; a pass has four groups."""

    largest: ClassVar[float] = E2M1_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """Channels c and c + 8 of the first token, then of the second: the nibbles of two bytes."""
        return values[0], values[2], values[1], values[3]

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        first, second = (pack_e2m1(*groups[g], *groups[g + 1]) for g in (0, 2))
        store_shared_v2(packed_store_address(buffer, packed_token(lane), warp), *gather_rows(first, second, lane))


@dataclass(frozen=True)
class E4m3Outputs:
    """Rounds a warp's 16 channels of a pass to E4M3 and stores them to the tile."""

    largest: ClassVar[float] = E4M3_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """Packs a thread's four scaled values of a group of 8 tokens, until all groups are stored together."""
        return pack_e4m3(*values)

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        token = lane & (8 * len(groups) - 1)
        store_transposed_b8(fc1_store_address(buffer, token, warp), groups)


@dataclass(frozen=True)
class Bf16Outputs:
    """As `E4m3Outputs`, for BF16 without scales: rows of 128 bytes, the layout of half a result tile."""

    largest: ClassVar[float] = 0.0

    def pack(self, values: Sequence[Any]) -> Any:
        """A word for each of a warp's two runs of eight channels."""
        return [pack_bf16(values[2 * run], values[2 * run + 1]) for run in range(2)]

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        """Stores four matrices at a time: matrix m has run m % 2 of eight channels, for group m / 2 of two groups of 8 tokens."""
        matrix = lane >> 3
        write = chunk_address(buffer, warp * 2 + (matrix & 1), lane, 8 * len(groups)) + (matrix >> 1) * (8 * HALF_BYTES)
        for g in range(0, len(groups), 2):
            store_transposed_b16(write + g * (8 * HALF_BYTES), [*groups[g], *groups[g + 1]])


OUTPUTS: dict[str, E4m3Outputs | E2m1Outputs | Bf16Outputs] = {E4M3: E4m3Outputs(), E2M1: E2m1Outputs(), BF16: Bf16Outputs()}


def activate_channels(ctx: Any, v: Sequence[Any], weights: tuple[Any, Any], gates: int = 0) -> list[Any]:
    """Activates a thread's eight sums of 8 tokens to four values: one channel of its two tokens, then the other channel.  In each run of
    four sums the gates of two tokens begin at index `gates`, 0 or 2, and the ups are the other two."""
    runs = (gates, 2 - gates), (4 + gates, 6 - gates)
    return [one for gate, up in runs for one in activate(ctx, (v[gate], v[gate + 1]), (v[up], v[up + 1]), weights)]


@cute.jit
def share_maxima(maxima: Int32, lane: Int32, peaks: cutlass.Constexpr[Any]):
    """Stores the warp's maxima of all groups for the warp that shares its scales, the thread's first token's at address `maxima`."""
    if lane < 4:
        for g in cutlass.range_constexpr(len(peaks)):
            emit("st.shared.v2.f32 [{}], {{{}, {}}};", maxima + g * 32, *peaks[g])


def joint_exponents(others: Any, g: int, peaks: Sequence[Any], largest: float) -> list[Any]:
    """Exponents of the scales of a thread's two tokens in group `g`, from `peaks` and the other warp's maxima at address `others`."""
    theirs = emit_to_many([Float32] * 2, "ld.shared.v2.f32 {{{}, {}}}, [{}];", others + g * 32)
    return [cast.scale_exponent(cast.abs_max(peaks[q], theirs[q]), largest) for q in range(2)]


COLUMNS = 4  # lane % 4: lanes of one column have different channels of the same tokens


@dataclass(frozen=True)
class GateUpFactors:
    """An expert's FP32 factors: `gate` and `up` multiply sums, and `hidden` is the factor of the E2M1 rows that these become."""

    gate: Any
    up: Any
    hidden: Any

    def of_sums(self, sums: Sequence[Any], gates: int = 0) -> list[Any]:
        """A thread's sums times their factors; `gates` as in `activate_channels`."""
        return [value * (self.gate if i & 2 == gates else self.up) for i, value in enumerate(sums)]

    def scale(self, passed: Sequence[Sequence[Any]], lane: Any) -> tuple[Any, Any]:
        """The scale of row `row_of_lane`, a byte, and the divisor of its values.  `passed`: a thread's activated values of all groups."""
        peaks = [abs_max(values[q], values[2 + q]) for values in passed for q in range(2)]
        return ue4m3_scale(largest_of_row(peaks, lane), self.hidden)


def packed_pass(passed: Sequence[Sequence[Any]], divisor: Any, lane: Any) -> list[Any]:
    """Divides and packs a thread's activated values for the output tile; each lane holds the `divisor` of row `row_of_lane`."""
    packed = []
    for g, values in enumerate(passed):
        divisors = [shuffle_f32(divisor, (2 * g + q) * COLUMNS + (lane & (COLUMNS - 1))) for q in range(2)]
        packed.append(OUTPUTS[E2M1].pack([divided(value, divisors[i & 1]) for i, value in enumerate(values)]))
    return packed


def row_of_lane(lane: Any) -> Any:
    """The row of a pass whose scale a lane computes: bits 4 and 3 of the lane select eight rows, bits 1 and 0 two of these, bit 2 one."""
    return (lane >> 3) * 8 + (lane & (COLUMNS - 1)) * 2 + ((lane >> 2) & 1)


def largest_of_row(peaks: Sequence[Any], lane: Any) -> Any:
    """The largest magnitude of row `row_of_lane` in all channels.  A lane begins with eight rows' maxima of its channels.  In each step two
    lanes of a column each keep half of their rows and exchange the other half, until a lane has one row."""
    left, distance = list(peaks), len(peaks) // 2 * COLUMNS
    while distance >= COLUMNS:
        half, upper = len(left) // 2, (lane & distance) != 0
        kept = [select(upper, left[half + i], left[i]) for i in range(half)]
        sent = [select(upper, left[i], left[half + i]) for i in range(half)]
        left = [abs_max(mine, shuffle_xor_f32(other, distance)) for mine, other in zip(kept, sent, strict=True)]
        distance //= 2
    return left[0]

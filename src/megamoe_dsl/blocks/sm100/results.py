"""What a CTA's part of a tile becomes.  Results go from tensor memory to rows in global memory, a pass of tokens at a time (article 4.5.5):
accumulators are rounded to BF16 and transposed through SMEM so that 16 lanes write 128 channels of one token.

Activated channels of a pass are in the registers of a warp, which holds 32 accumulator rows, gate and up interleaved by 8: 16 output
channels.  Thread t has channels t / 4 and 8 + t / 4 of the warp for tokens 2 (t % 4) and 2 (t % 4) + 1 of every 8.  Two warps share
a scale (32 channels), so they exchange their maxima in SMEM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...device import cast
from ...device.cast import E2M1_MAX, E4M3_MAX, pack_bf16, pack_e2m1, pack_e4m3
from ...device.e2m1 import gather_rows
from ...device.memory import load_shared_v4, store_shared_v2, store_transposed_b8, store_transposed_b16
from ...device.ptx import emit, emit_to_many
from ...device.tcgen05 import load_columns
from ...device.warp import named_barrier
from ...recipe import BF16, E2M1, E4M3
from ..swiglu import activate
from .epilogue_tile import (
    HALF_BYTES,
    channel_bytes,
    chunk_address,
    fc1_store_address,
    packed_store_address,
    packed_token,
    read_address,
    read_row,
    write_address,
)

WARPGROUP = 128  # threads
ROWS_PER_STEP = 8  # tokens that the four warps write at a time, two per warp


class FinishedRows(Protocol):
    """What becomes of sums before they are rounded."""

    def finished(self, first: Any, sums: Sequence[Any]) -> Sequence[Any]:
        """What is rounded of the sums that a thread has of 8 tokens, its own first one being token `first` of the tile."""


class ResultRows(FinishedRows, Protocol):
    """Where rows of results go, and in which format."""

    @property
    def value_bytes(self) -> int:
        """Bytes that a value of a row takes."""

    def begin(self, first: Any, own_row: Any) -> Any:
        """Before a pass from token `first` of the tile on: what `addresses` needs for the row `own_row` after it and those after that."""

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        """Addresses of the rows that lie `steps` rows after the first."""

    def has(self, row: Any) -> Any:
        """Whether a lane's channels of a row of the tile are to be written."""

    def send(self, place: Any, first: Any, lane: Any, words: Any) -> None:
        """A lane's 8 channels, BF16 in four words, to their place: byte `first` of a row."""


@dataclass(frozen=True)
class ResultPart:
    """What a warpgroup has of a tile."""

    column: Int32  # the accumulator's first TMEM column
    staging: Int32  # shared address of the warpgroup's result tile
    group: Int32
    warp: Int32
    lane: Int32
    valid: Int32  # tokens of the tile
    n_block: Int32  # which 128 weight rows, of all
    tokens: cutlass.Constexpr[int]  # of a pass
    barriers: cutlass.Constexpr[int]  # number of the named barrier of the first warpgroup
    every: cutlass.Constexpr[int] = 1  # the warpgroup's next pass is so many on
    first: Any = 0  # token of its first pass

    def sync_group(self) -> None:
        named_barrier(self.group + self.barriers, WARPGROUP)


@cute.jit
def stage_pass(part: ResultPart, rows: FinishedRows, write: Int32, first: Int32):
    """A pass of tokens from tensor memory to the warpgroup's result tile; `write` is the warp's `write_address` there."""
    groups = load_columns(part.column + first, part.tokens // 8)
    # After this barrier the buffer is free: the warpgroup has read the pass before from it, and where TMA may still read what was in it
    # before, those who stored it have waited for that.
    part.sync_group()
    for g, sums in enumerate(groups):
        v = rows.finished(first + 8 * g + (part.lane & 3) * 2, sums)
        store_transposed_b16(write + g * (8 * HALF_BYTES), [pack_bf16(v[2 * k], v[2 * k + 1]) for k in range(4)])


@cute.jit
def store_results(part: ResultPart, rows: ResultRows):
    """All passes of a warpgroup; one of its warps."""
    tokens = part.tokens
    write = write_address(part.staging, part.warp, part.lane, tokens)
    own_row = read_row(part.warp, part.lane)
    read = read_address(part.staging, own_row, part.lane, tokens)
    offset = Int64(channel_bytes(part.n_block, part.lane, rows.value_bytes))
    for first in cutlass.range(part.first, part.valid, part.every * tokens, unroll=1):
        begun = rows.begin(first, own_row)
        stage_pass(part, rows, write, first)
        destinations = rows.addresses(begun, range(0, tokens, ROWS_PER_STEP))
        part.sync_group()
        for i, step in enumerate(range(0, tokens, ROWS_PER_STEP)):
            if rows.has(first + own_row + step):
                rows.send(destinations[i] + offset, offset, part.lane, load_shared_v4(read + step * HALF_BYTES))


@dataclass(frozen=True)
class E2m1Outputs:
    """The counterpart of `E4m3Outputs`; a pass has four groups."""

    largest: ClassVar[float] = E2M1_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """Channels c and c + 8 of the first token, then of the second: the nibbles of two bytes."""
        return values[0], values[2], values[1], values[3]

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        first, second = (pack_e2m1(*groups[g], *groups[g + 1]) for g in (0, 2))
        store_shared_v2(packed_store_address(buffer, packed_token(lane), warp), *gather_rows(first, second, lane))


@dataclass(frozen=True)
class E4m3Outputs:
    """How a warp of the Linear1 epilogue rounds and stores its 16 channels of a pass (kernels/moe/sm100/epilogue.py)."""

    largest: ClassVar[float] = E4M3_MAX

    def pack(self, values: Sequence[Any]) -> Any:
        """What is kept of a thread's four scaled values of a group of 8 tokens until all groups are stored."""
        return pack_e4m3(*values)

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        token = lane & (8 * len(groups) - 1)
        store_transposed_b8(fc1_store_address(buffer, token, warp), groups)


@dataclass(frozen=True)
class Bf16Outputs:
    """The counterpart of both without scales: rows of 128 bytes, as half of a tile of results has them."""

    largest: ClassVar[float] = 0.0

    def pack(self, values: Sequence[Any]) -> Any:
        """A word for each of a warp's two runs of eight channels."""
        return [pack_bf16(values[2 * run], values[2 * run + 1]) for run in range(2)]

    def store(self, buffer: Any, warp: Any, lane: Any, groups: Sequence[Any]) -> None:
        """Matrix m of a store: run m % 2 of the channels, of the first (m / 2 = 0) or second eight tokens of two groups."""
        matrix = lane >> 3
        write = chunk_address(buffer, warp * 2 + (matrix & 1), lane, 8 * len(groups)) + (matrix >> 1) * (8 * HALF_BYTES)
        for g in range(0, len(groups), 2):
            store_transposed_b16(write + g * (8 * HALF_BYTES), [*groups[g], *groups[g + 1]])


OUTPUTS: dict[str, E4m3Outputs | E2m1Outputs | Bf16Outputs] = {E4M3: E4m3Outputs(), E2M1: E2m1Outputs(), BF16: Bf16Outputs()}


def activate_group(ctx: Any, v: Sequence[Any], weights: tuple[Any, Any], gates: int = 0) -> tuple[list[Any], list[Any]]:
    """`activate_channels`, and the warp's maximum of each of a thread's two tokens."""
    values = activate_channels(ctx, v, weights, gates)
    return values, peaks_of_warp(values)


def peaks_of_warp(values: Sequence[Any]) -> list[Any]:
    """The warp's maximum of each of a thread's two tokens."""
    return [cast.max_over_rows(cast.abs_max(values[q], values[2 + q])) for q in range(2)]


def activate_channels(ctx: Any, v: Sequence[Any], weights: tuple[Any, Any], gates: int = 0) -> list[Any]:
    """A thread's four values of 8 tokens: one channel of its two tokens, then another; gates lie from place `gates` on in its two runs of
    four sums, up in the other two places."""
    values: list[Any] = []
    for gate, up in ((gates, 2 - gates), (4 + gates, 6 - gates)):
        values += activate(ctx, (v[gate], v[gate + 1]), (v[up], v[up + 1]), weights)
    return values


@cute.jit
def share_maxima(maxima: Int32, lane: Int32, peaks: cutlass.Constexpr[Any]):
    """Stores the maxima of all groups, for the warp that shares the scales; `maxima` is where the thread's first token's goes."""
    if lane < 4:
        for g in cutlass.range_constexpr(len(peaks)):
            emit("st.shared.v2.f32 [{}], {{{}, {}}};", maxima + g * 32, *peaks[g])


def joint_exponents(others: Any, g: int, peaks: Sequence[Any], largest: float) -> list[Any]:
    """Exponents of the scales of a group's two tokens; `others` is where the other warp's maxima lie."""
    theirs = emit_to_many([Float32] * 2, "ld.shared.v2.f32 {{{}, {}}}, [{}];", others + g * 32)
    return [cast.scale_exponent(cast.abs_max(peaks[q], theirs[q]), largest) for q in range(2)]

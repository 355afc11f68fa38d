"""The epilogue of the backward pass on SM90.  Sums are gradients of the activated product, dY W2.  What leaves are gradients of gate and
up, the product times its top-k weight, and, of every 128 columns, a row's part of that weight's gradient.

A warp has a ring of boxes in SMEM.  Gate and up of 8 rows and 64 or 32 channels are copied into a box; their gradients take their place and
leave from there, then weighted products.  The first boxes are copied while the tile is multiplied.  Nothing is copied through registers:
ptxas has too few scoreboards, so that the next exponential would wait for the loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...device.cast import pack_bf16, permute, unpack_bf16
from ...device.memory import (
    VECTOR,
    WORD,
    commit_copies,
    copy_vector,
    copy_word,
    load_f32,
    load_four,
    load_shared_v2,
    load_shared_v4,
    store_b16,
    store_f32,
    store_v4,
    wait_copies,
)
from ...device.warp import shuffle_xor_f32, sync_warp
from ...hardware.operand_tile import CHUNK, ROW_BYTES, SW128
from ...layouts.arith import select
from ..sm90.share import WARP_ROWS, RowShare
from ..swiglu import gradients
from .context import GemmContext, GemmTile
from .problem import DOT_COLUMNS, INTERLEAVED, UP_FIRST
from .tile import WARPS_PER_GROUP

CHUNKS = ROW_BYTES // CHUNK
BOX_ROWS = 8
HALVES = WARP_ROWS // BOX_ROWS
PART_BYTES = BOX_ROWS * ROW_BYTES
NUMBER = 32  # channels that a warp computes at a time
WORDS = 4  # of a thread's row among them, two channels each
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632


@dataclass(frozen=True)
class GateUpBox:
    """Gate and up of half of a warp's rows, `channels` from `channel` on, at address `place`; one or two parts of 128 bytes a row."""

    place: Any
    half: cutlass.Constexpr[int]
    channel: Int32
    channels: cutlass.Constexpr[int]
    order: cutlass.Constexpr[str]
    n: cutlass.Constexpr[int]

    @property
    def chunks(self) -> int:
        """16-byte chunks of gate, and as many of up."""
        return self.channels * 2 // CHUNK

    def chunk_place(self, row: Any, chunk: Any) -> Any:
        return self.place + (chunk // CHUNKS) * PART_BYTES + SW128(row * ROW_BYTES + chunk % CHUNKS * CHUNK)

    def channel_of(self, chunk: Any) -> Any:
        """The first channel of a chunk of a row."""
        return self.channel + (chunk * 4 if self.order == INTERLEAVED else chunk % self.chunks * 8)

    def offset(self, row: Any, chunk: Any) -> Any:
        """Bytes from the start of gate and up, or of their gradients, to a chunk of row `row` of the matrix."""
        first = Int64(row) * (2 * self.n)
        if self.order == INTERLEAVED:
            return (first + 2 * self.channel_of(chunk)) * 2
        second = (chunk // self.chunks) ^ int(self.order == UP_FIRST)
        return (first + (self.channel_of(chunk) + second * self.n)) * 2

    def word_places(self, row: Any, chunk: Any) -> list[Any]:
        """Where a chunk of a row lies; of gate and up that alternate, its even words and its odd ones, which belong to the even and the odd
        channels of a thread's sums."""
        if self.order != INTERLEAVED:
            return [self.chunk_place(row, chunk)]
        return [self.chunk_place(row, (chunk & -2) + odd) + (chunk & 1) * (CHUNK // 2) for odd in range(2)]

    def fragments(self, lane: Any, number: int) -> list[Any]:
        """Addresses that a lane gives of the two matrices of four words each, gate and up or even and odd channels, for 32 channels."""
        alternate = self.order == INTERLEAVED
        firsts, step = ((CHUNKS * number, CHUNKS * number + 1), 2) if alternate else ((WORDS * number, self.chunks + WORDS * number), 1)
        return [self.chunk_place(lane & 7, first + (lane >> 3) * step) for first in firsts]

    def pieces(self, lane: Any) -> Iterator[tuple[Any, Any]]:
        """Row and chunk that a lane moves at a time, 128 bytes of a row by eight lanes."""
        for part, step in product(range(2 * self.chunks // CHUNKS), range(0, BOX_ROWS, 32 // CHUNKS)):
            yield step + lane // CHUNKS, part * CHUNKS + lane % CHUNKS


def box_of(ctx: GemmContext, tile: GemmTile, me: RowShare, number: int) -> GateUpBox:
    """Box `number` of a warp's part of a tile: the halves of its rows take turns."""
    epilogue, problem, (group, half) = ctx.config.epilogue, ctx.config.problem, divmod(number, HALVES)
    place = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, number % epilogue.buffers)
    channel = tile.n_block * ctx.config.block_n + group * epilogue.channels
    return GateUpBox(place, half, channel, epilogue.channels, problem.gradient, problem.n)


def begin_gradient(ctx: GemmContext, tile: GemmTile, me: RowShare) -> None:
    """Asks for the first boxes of a warp's rows."""
    for number in range(ctx.config.epilogue.buffers):
        copy_box(ctx, tile, me, box_of(ctx, tile, me, number))


@cute.jit
def finish_gradient(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile.  The shuffles of the last `store_dots` wait for all lanes: none still reads a box that the next tile
    overwrites."""
    args, problem, epilogue = ctx.args, ctx.config.problem, ctx.config.epilogue
    boxes = HALVES * ctx.config.block_n // epilogue.channels
    rows = [Int64(tile.row + cutlass.min(me.token + BOX_ROWS * h, tile.valid_m - 1)) for h in range(HALVES)]
    weights, dots = [load_f32(args.row_weights + row * 4) for row in rows], [Float32(0.0)] * HALVES
    values = [one for part in sums for one in part]
    for number in cutlass.range_constexpr(boxes):
        box = box_of(ctx, tile, me, number)
        wait_copies(min(epilogue.buffers, boxes - number) - 1)
        sync_warp()
        first, weighted = number // HALVES * epilogue.channels // NUMBER, []
        for i in cutlass.range_constexpr(epilogue.channels // NUMBER):
            own = values[16 * (first + i) :][:16]
            raw = [own[4 * word + 2 * box.half + e] for word in range(WORDS) for e in range(2)]
            weighted.append(gradients_in_place(problem, raw, box.fragments(me.lane, i), weights[box.half], dots, box.half))
        sync_warp()
        store_gradients(ctx, tile, me, box)
        sync_warp()
        for i in cutlass.range_constexpr(len(weighted)):
            store_b16(box.chunk_place(me.lane & 7, WORDS * i + (me.lane >> 3)), weighted[i])
        sync_warp()
        store_weighted(ctx, tile, me, box)
        if cutlass.const_expr(number + epilogue.buffers < boxes):
            sync_warp()
            copy_box(ctx, tile, me, box_of(ctx, tile, me, number + epilogue.buffers))
        done = (number // HALVES + 1) * epilogue.channels
        if cutlass.const_expr(box.half == HALVES - 1 and done % DOT_COLUMNS == 0):
            store_dots(ctx, tile, me, (tile.n_block * ctx.config.block_n + done) // DOT_COLUMNS - 1, rows, dots)
            dots = [Float32(0.0)] * HALVES


@cute.jit
def copy_box(ctx: GemmContext, tile: GemmTile, me: RowShare, box: GateUpBox):
    """Asks for a box, in a group of copies; channels that are not there become zero."""
    for row, chunk in box.pieces(me.lane):
        token = cutlass.min(me.warp_token + BOX_ROWS * box.half + row, tile.valid_m - 1)
        source = ctx.args.gate_up + box.offset(tile.row + token, chunk)
        num_bytes = Int32(VECTOR) if box.n % ctx.config.block_n == 0 else select(box.channel_of(chunk) < box.n, Int32(VECTOR), Int32(0))
        places = box.word_places(row, chunk)
        if cutlass.const_expr(len(places) == 1):
            copy_vector(places[0], source, num_bytes)
        else:
            for word in cutlass.range_constexpr(VECTOR // WORD):
                copy_word(places[word % 2] + word // 2 * WORD, source + word * WORD, num_bytes // (VECTOR // WORD))
    commit_copies()


def gradients_in_place(problem: Any, raw: Any, places: Any, weight: Any, dots: Any, h: int) -> Any:
    """Words of the weighted product of a thread's eight channels in row h; their gate and up become gradients where they lie."""
    weighted, *written = eight_channels(problem, raw, zip(*map(load_four, places), strict=True), weight, dots, h)
    sync_warp()
    for place, words in zip(places, written, strict=True):
        store_b16(place, words)
    return weighted


def eight_channels(problem: Any, raw: Any, words: Any, weight: Any, dots: Any, h: int) -> tuple[Any, Any, Any]:
    """Words of a lane's weighted product, and its gradients as four pairs of `words` had gate and up: a word of either, or, where they
    alternate, both of a channel in a word.  Adds to `dots[h]`."""
    alternate, found = problem.gradient == INTERLEAVED, []
    for i, both in enumerate(words):
        values = [unpack_bf16(one) for one in both]
        found.append(channels(problem, raw[2 * i : 2 * i + 2], zip(*values, strict=True) if alternate else values, weight, dots, h))
    weighted, gates, ups = zip(*found, strict=True)
    if not alternate:
        return weighted, gates, ups
    mixed = [permute(*both, half) for both in zip(gates, ups, strict=True) for half in (LOW_HALVES, HIGH_HALVES)]
    return weighted, mixed[::2], mixed[1::2]


def channels(problem: Any, raw: Any, gate_up: Any, weight: Any, dots: Any, h: int) -> tuple[Any, Any, Any]:
    """Words of two channels of row h: the product times its weight, gradients of gates and of ups; adds to the row's `dots`."""
    found = [gradients(problem.product, gate, up, one * weight) for gate, up, one in zip(*gate_up, raw, strict=True)]
    products, of_gate, of_up = zip(*found, strict=True)
    rounded = unpack_bf16(pack_bf16(*products))
    for one, value in zip(raw, rounded, strict=True):
        dots[h] = dots[h] + one * value
    return pack_bf16(*(one * weight for one in rounded)), pack_bf16(*of_gate), pack_bf16(*of_up)


@cute.jit
def store_gradients(ctx: GemmContext, tile: GemmTile, me: RowShare, box: GateUpBox):
    """A box to rows of gradients of gate and up."""
    for row, chunk in box.pieces(me.lane):
        token, places = me.warp_token + BOX_ROWS * box.half + row, box.word_places(row, chunk)
        if (token < tile.valid_m) & (box.channel_of(chunk) < box.n):
            if cutlass.const_expr(len(places) == 1):
                words = load_shared_v4(places[0])
            else:
                (a, c), (b, d) = load_shared_v2(places[0]), load_shared_v2(places[1])
                words = a, b, c, d
            store_v4(ctx.args.d + box.offset(tile.row + token, chunk), tuple(words))


@cute.jit
def store_weighted(ctx: GemmContext, tile: GemmTile, me: RowShare, box: GateUpBox):
    """The first half of a box's chunks to rows of weighted products."""
    for first in cutlass.range_constexpr(0, BOX_ROWS * box.chunks, 32):
        row, chunk = (first + me.lane) // box.chunks, me.lane % box.chunks
        token, channel = me.warp_token + BOX_ROWS * box.half + row, box.channel + chunk * 8
        if (token < tile.valid_m) & (channel < box.n):
            words = load_shared_v4(box.chunk_place(row, chunk))
            store_v4(ctx.args.weighted + (Int64(tile.row + token) * box.n + channel) * 2, tuple(words))


@cute.jit
def store_dots(ctx: GemmContext, tile: GemmTile, me: RowShare, number: Int32, rows: Any, dots: Any):
    """What 128 columns add to the gradients of a thread's two rows' weights, once a quad has added them."""
    for h in cutlass.range_constexpr(HALVES):
        total = dots[h]
        for mask in cutlass.range_constexpr(1, 3):
            total = total + shuffle_xor_f32(total, mask)
        there = (me.token + BOX_ROWS * h < tile.valid_m) & (number * DOT_COLUMNS < ctx.config.problem.n)
        if there & (me.pair == 0):
            store_f32(ctx.args.dots + (Int64(number) * ctx.args.m + rows[h]) * 4, total)

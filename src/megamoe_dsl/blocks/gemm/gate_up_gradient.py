"""The epilogue of the backward pass on SM90: sums are gradients of the activated product before top-k weights, dY W2; what leaves are
gradients of gate and up, the product times its weight, and parts of each row's product of sums and activated product, over 128 columns
each: the gradient of its weight.

Gate and up of 32 channels come and their gradients leave at a time, 16 bytes a lane, by way of a warp's box of SMEM, of whose rows one half
is gate and one up, or which alternate as they do.  Those of the next 64 channels are on their way meanwhile.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...device.cast import pack_bf16, permute, unpack_bf16
from ...device.memory import (
    load_f32,
    load_four,
    load_once_v4,
    load_shared_v2,
    load_shared_v4,
    store_b16,
    store_f32,
    store_shared_v2,
    store_shared_v4,
    store_v4,
)
from ...device.warp import shuffle_xor_f32, sync_warp
from ...hardware.operand_tile import CHUNK, ROW_BYTES, SW128
from ..sm90.share import WARP_ROWS, RowShare
from ..swiglu import gradients
from .context import GemmContext, GemmTile
from .problem import DOT_COLUMNS, INTERLEAVED, UP_FIRST
from .tile import WARPS_PER_GROUP

CHANNELS = ROW_BYTES // 4  # of a box: each has a gate and an up
AHEAD = 2  # boxes that are on their way
CHUNKS = ROW_BYTES // CHUNK
ROWS_PER_STEP = 32 // CHUNKS
STEPS = range(0, WARP_ROWS, ROWS_PER_STEP)
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632


@cute.jit
def finish_gradient(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile."""
    args, problem, boxes = ctx.args, ctx.config.problem, ctx.config.block_n // CHANNELS
    staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, 0)
    rows = [Int64(tile.row + cutlass.min(me.token + 8 * h, tile.valid_m - 1)) for h in range(2)]
    weights = [load_f32(args.row_weights + row * 4) for row in rows]
    dots, coming = [Float32(0.0)] * 2, [fetch(ctx, tile, me, box) for box in range(AHEAD)]
    values = [one for part in sums for one in part]
    for box in cutlass.range_constexpr(boxes):
        sync_warp()
        stage_fetched(staging, me.lane, problem.gradient, coming[box])
        sync_warp()
        weighted = []
        for number in cutlass.range_constexpr(2):
            places = places_of(problem.gradient, staging, me.lane, number)
            weighted += four_channels(problem, values[16 * box + 8 * number :][:8], places, weights, dots)
        if cutlass.const_expr(box + AHEAD < boxes):
            coming.append(fetch(ctx, tile, me, box + AHEAD))
        channel = tile.n_block * ctx.config.block_n + box * CHANNELS
        sync_warp()
        store_gradients(ctx, tile, me, staging, channel)
        sync_warp()
        for number in cutlass.range_constexpr(2):
            store_b16(fragment_place(staging, me.lane, 2 * number), weighted[4 * number : 4 * number + 4])
        sync_warp()
        store_weighted(ctx, tile, me, staging, channel)
        if cutlass.const_expr((box + 1) * CHANNELS % DOT_COLUMNS == 0):
            store_dots(ctx, tile, me, (channel + CHANNELS) // DOT_COLUMNS - 1, rows, dots)
            dots = [Float32(0.0)] * 2


def lane_column(problem: Any, channel: Any, lane: Any) -> Any:
    """The column of gate and up that a lane's 16 bytes begin at, of 32 channels from `channel` on."""
    chunk = lane % CHUNKS
    if problem.gradient == INTERLEAVED:
        return 2 * channel + chunk * 8
    second = (chunk // (CHUNKS // 2)) ^ int(problem.gradient == UP_FIRST)
    return channel + chunk % (CHUNKS // 2) * 8 + second * problem.n


@cute.jit
def fetch(ctx: GemmContext, tile: GemmTile, me: RowShare, box: cutlass.Constexpr[int]):
    """Gate and up of the warp's rows and 32 channels, 16 bytes of every fourth row."""
    problem = ctx.config.problem
    channel = cutlass.min(tile.n_block * ctx.config.block_n + box * CHANNELS, problem.n - CHANNELS)
    at = ctx.args.gate_up + Int64(lane_column(problem, channel, me.lane)) * 2
    tokens = [cutlass.min(me.warp_token + step + me.lane // CHUNKS, tile.valid_m - 1) for step in STEPS]
    return [load_once_v4(at + Int64(tile.row + token) * (4 * problem.n)) for token in tokens]


def lane_places(staging: Any, lane: Any, step: int, apart: bool) -> list[Any]:
    """Where a lane's 16 bytes of a row lie in a box; where gate and up alternate, 8 bytes each of the even channels and of the odd ones of
    eight, so that a quad finds those that its sums are of."""
    row, chunk = step + lane // CHUNKS, lane % CHUNKS
    if not apart:
        return [staging + SW128(row * ROW_BYTES + chunk * CHUNK)]
    return [staging + SW128(row * ROW_BYTES + (chunk & -2) * CHUNK + odd * CHUNK) + (chunk & 1) * (CHUNK // 2) for odd in range(2)]


def fragment_place(staging: Any, lane: Any, first: int) -> Any:
    """Where lane 8 m + r finds row r of matrix m of two chunks: 8 rows (m % 2) by a chunk (m / 2)."""
    return staging + SW128((lane & 15) * ROW_BYTES + ((lane >> 4) + first) * CHUNK)


def stage_fetched(staging: Any, lane: Any, order: str, fetched: Any) -> None:
    for step, words in zip(STEPS, fetched, strict=True):
        places = lane_places(staging, lane, step, order == INTERLEAVED)
        if len(places) == 1:
            store_shared_v4(places[0], words)
        else:
            for place, two in zip(places, (words[::2], words[1::2]), strict=True):
                store_shared_v2(place, *two)


def places_of(order: str, staging: Any, lane: Any, number: int) -> list[Any]:
    """Where a lane finds gate and up of half the channels: two chunks of each, or where they alternate four that follow one another."""
    chunks = (4 * number, 4 * number + 2) if order == INTERLEAVED else (2 * number, CHUNKS // 2 + 2 * number)
    return [fragment_place(staging, lane, first) for first in chunks]


def four_channels(problem: Any, raw: Any, places: Any, weights: Any, dots: Any) -> list[Any]:
    """Words of the weighted product of a thread's four channels in both rows; their gate and up become gradients, and `dots` are added to.
    Every word is read when it is needed and written at once: ptxas keeps pairs of FP32 where words of BF16 wait, and would spill."""
    read, alternate = [load_four(place) for place in places], problem.gradient == INTERLEAVED
    pairs: Any = ((both[h], both[2 + h]) for both in read for h in range(2)) if alternate else zip(*read, strict=True)
    found = []
    for j, words in enumerate(pairs):
        values = [unpack_bf16(one) for one in words]
        gate_up: Any = zip(*values, strict=True) if alternate else values
        word, of_gate, of_up = channels(problem, raw[2 * j : 2 * j + 2], gate_up, weights, dots, j % 2)
        halves = (LOW_HALVES, HIGH_HALVES) if alternate else ()
        found.append((word, *([permute(of_gate, of_up, half) for half in halves] or (of_gate, of_up))))
    weighted, first, second = (list(one) for one in zip(*found, strict=True))
    written = [[*first[half : half + 2], *second[half : half + 2]] for half in (0, 2)] if alternate else [first, second]
    sync_warp()
    for place, words in zip(places, written, strict=True):
        store_b16(place, words)
    return weighted


def channels(problem: Any, raw: Any, gate_up: Any, weights: Any, dots: Any, h: int) -> tuple[Any, Any, Any]:
    """Words of two channels of row h: the product times its weight, gradients of gates and of ups; adds to the row's `dots`."""
    found = [gradients(problem.product, gate, up, one * weights[h]) for gate, up, one in zip(*gate_up, raw, strict=True)]
    products, of_gate, of_up = zip(*found, strict=True)
    rounded = unpack_bf16(pack_bf16(*products))
    for one, value in zip(raw, rounded, strict=True):
        dots[h] = dots[h] + one * value
    return pack_bf16(*(one * weights[h] for one in rounded)), pack_bf16(*of_gate), pack_bf16(*of_up)


@cute.jit
def store_gradients(ctx: GemmContext, tile: GemmTile, me: RowShare, staging: Int32, channel: Int32):
    """A box to rows of gradients of gate and up."""
    problem = ctx.config.problem
    at = ctx.args.d + Int64(lane_column(problem, channel, me.lane)) * 2
    for step in cutlass.range_constexpr(0, WARP_ROWS, ROWS_PER_STEP):
        token = me.warp_token + step + me.lane // CHUNKS
        if (token < tile.valid_m) & (channel < problem.n):
            places = lane_places(staging, me.lane, step, problem.gradient == INTERLEAVED)
            if cutlass.const_expr(len(places) == 1):
                words = load_shared_v4(places[0])
            else:
                (a, c), (b, d) = load_shared_v2(places[0]), load_shared_v2(places[1])
                words = a, b, c, d
            store_v4(at + Int64(tile.row + token) * (4 * problem.n), tuple(words))


@cute.jit
def store_weighted(ctx: GemmContext, tile: GemmTile, me: RowShare, staging: Int32, channel: Int32):
    """The first half of a box to rows of weighted products."""
    args, chunks = ctx.args, CHUNKS // 2
    at = args.weighted + Int64(channel + me.lane % chunks * 8) * 2
    for step in cutlass.range_constexpr(0, WARP_ROWS, 2 * ROWS_PER_STEP):
        row = step + me.lane // chunks
        if (me.warp_token + row < tile.valid_m) & (channel < ctx.config.problem.n):
            words = load_shared_v4(staging + SW128(row * ROW_BYTES + me.lane % chunks * CHUNK))
            store_v4(at + Int64(tile.row + me.warp_token + row) * (2 * ctx.config.problem.n), tuple(words))


@cute.jit
def store_dots(ctx: GemmContext, tile: GemmTile, me: RowShare, number: Int32, rows: Any, dots: Any):
    """What 128 columns add to the gradients of a thread's two rows' weights, once a quad has added them."""
    args = ctx.args
    for h in cutlass.range_constexpr(2):
        total = dots[h]
        for mask in cutlass.range_constexpr(1, 3):
            total = total + shuffle_xor_f32(total, mask)
        there = (me.token + 8 * h < tile.valid_m) & (number * DOT_COLUMNS < ctx.config.problem.n)
        if there & (me.pair == 0):
            store_f32(args.dots + (Int64(number) * ctx.args.m + rows[h]) * 4, total)

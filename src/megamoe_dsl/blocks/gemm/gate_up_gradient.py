"""The epilogue of the backward pass on SM90: sums are gradients of the activated product before top-k weights, dY W2; what leaves are
gradients of gate and up, the product times its weight, and parts of each row's product of sums and activated product, over 128 columns
each, whatever the tile: the gradient of its weight.

Gate and up come and their gradients leave 64 columns at a time, 16 bytes a lane, by way of a warp's box of SMEM: of gate, then of up, or
where they alternate of both, twice.  Those of the next 64 columns are on their way meanwhile.
"""

from __future__ import annotations

from typing import Any
from typing import cast as cast_to

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
from ..sm90.tokens_as_m import WARP_ROWS, RowShare
from ..swiglu import gradients
from .arguments import GradientArguments
from .context import GemmContext, GemmTile
from .problem import DOT_COLUMNS, INTERLEAVED, UP_FIRST
from .tile import WARPS_PER_GROUP

COLUMNS = ROW_BYTES // 2
"""Of a box: of 64 channels gate and up take one each, or two together."""
CHUNKS = ROW_BYTES // CHUNK
ROWS_PER_STEP = 32 // CHUNKS
STEPS = range(0, WARP_ROWS, ROWS_PER_STEP)
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632


@cute.jit
def finish_gradient(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile."""
    args, problem, boxes = cast_to(GradientArguments, ctx.args), ctx.config.problem, ctx.config.block_n // COLUMNS
    staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, 0)
    rows = [Int64(tile.row + cutlass.min(me.token + 8 * h, tile.valid_m - 1)) for h in range(2)]
    weights = [load_f32(args.row_weights + row * 4) for row in rows]
    dots, coming = [Float32(0.0)] * 2, fetch(ctx, tile, me, 0)
    values = [one for part in sums for one in part]
    for box in cutlass.range_constexpr(boxes):
        halves = [fragments(staging, me.lane, problem.gradient, one) for one in coming]
        coming = fetch(ctx, tile, me, box + 1) if box + 1 < boxes else []
        found = []
        for j in cutlass.range_constexpr(2 * CHUNKS):
            pair, h = j // 2, j % 2
            first = 4 * (box * CHUNKS + pair) + 2 * h
            words, dots[h] = channels(
                problem, values[first : first + 2], gate_up_of(problem.gradient, halves, pair, h), weights[h], dots[h]
            )
            found.append(words)
        weighted, *both = zip(*found, strict=True)
        column = tile.n_block * ctx.config.block_n + box * COLUMNS
        stage_words(staging, me.lane, weighted)
        store_rows(ctx, tile, me, staging, args.weighted, column, problem.n, "")
        for half in cutlass.range_constexpr(2):
            stage_words(staging, me.lane, half_of(problem.gradient, both, half))
            store_rows(ctx, tile, me, staging, ctx.args.d, *place_of(problem, column, half), problem.gradient)
        if cutlass.const_expr((box + 1) * COLUMNS % DOT_COLUMNS == 0):
            store_dots(ctx, tile, me, (column + COLUMNS) // DOT_COLUMNS - 1, rows, dots)
            dots = [Float32(0.0)] * 2


def place_of(problem: Any, column: Any, half: int) -> tuple[Any, int]:
    """The column of gate and up that a box begins at, for 64 channels from `column` on, and how many columns end behind them: where those
    alternate all, else those of gate, or in the second box of up."""
    if problem.gradient == INTERLEAVED:
        return 2 * column + half * COLUMNS, 2 * problem.n
    second = half != (problem.gradient == UP_FIRST)
    return column + second * problem.n, problem.n * (1 + second)


@cute.jit
def fetch(ctx: GemmContext, tile: GemmTile, me: RowShare, box: cutlass.Constexpr[int]):
    """Gate and up of the warp's rows and 64 channels, 16 bytes of every fourth row for each of two boxes."""
    args, problem, coming = cast_to(GradientArguments, ctx.args), ctx.config.problem, []
    for half in cutlass.range_constexpr(2):
        column, end = place_of(problem, tile.n_block * ctx.config.block_n + box * COLUMNS, half)
        at = args.gate_up + Int64(cutlass.min(column + me.lane % CHUNKS * 8, end - 8)) * 2
        tokens = [cutlass.min(me.warp_token + step + me.lane // CHUNKS, tile.valid_m - 1) for step in STEPS]
        coming.append([load_once_v4(at + Int64(tile.row + token) * (4 * problem.n)) for token in tokens])
    return coming


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


def fragments(staging: Any, lane: Any, order: str, fetched: Any) -> list[Any]:
    """The words of a thread, two for each chunk, of its two rows, of what the warp has fetched."""
    sync_warp()
    for step, words in zip(STEPS, fetched, strict=True):
        places = lane_places(staging, lane, step, order == INTERLEAVED)
        if len(places) == 1:
            store_shared_v4(places[0], words)
        else:
            for place, two in zip(places, (words[::2], words[1::2]), strict=True):
                store_shared_v2(place, *two)
    sync_warp()
    return [word for first in range(0, CHUNKS, 2) for word in load_four(fragment_place(staging, lane, first))]


def gate_up_of(order: str, halves: Any, pair: int, h: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Gates and ups of channels 8 pair + 2 (lane % 4) and the next in row h of a thread."""
    if order != INTERLEAVED:
        gate, up = (half[2 * pair + h] for half in halves)
        return unpack_bf16(gate), unpack_bf16(up)
    even, odd = (halves[pair // 4][2 * (2 * (pair % 4) + which) + h] for which in range(2))
    (gate, up), (next_gate, next_up) = unpack_bf16(even), unpack_bf16(odd)
    return (gate, next_gate), (up, next_up)


def half_of(order: str, both: Any, half: int) -> list[Any]:
    """Words of gradients of gate and of up as a box of them has its matrices."""
    gate, up = both
    if order != INTERLEAVED:
        return list(both[half])
    chosen = [(chunk // 2 + 4 * half, chunk % 2, h) for chunk in range(CHUNKS) for h in range(2)]
    return [permute(gate[2 * pair + h], up[2 * pair + h], HIGH_HALVES if odd else LOW_HALVES) for pair, odd, h in chosen]


def channels(problem: Any, raw: Any, gate_up: Any, weight: Any, dot: Any) -> tuple[tuple[Any, Any, Any], Any]:
    """Words of two channels of a row: the product times its weight, gradients of gates and of ups; and `dot` with what they add to it."""
    found = [gradients(problem.product, gate, up, one * weight) for gate, up, one in zip(*gate_up, raw, strict=True)]
    products, of_gate, of_up = zip(*found, strict=True)
    rounded = unpack_bf16(pack_bf16(*products))
    for one, value in zip(raw, rounded, strict=True):
        dot = dot + one * value
    return (pack_bf16(*(one * weight for one in rounded)), pack_bf16(*of_gate), pack_bf16(*of_up)), dot


def stage_words(staging: Any, lane: Any, words: Any) -> None:
    """A box from the words of threads, as `fragments` gives them."""
    sync_warp()
    for first in range(0, CHUNKS, 2):
        store_b16(fragment_place(staging, lane, first), words[2 * first : 2 * first + 4])
    sync_warp()


@cute.jit
def store_rows(
    ctx: GemmContext,
    tile: GemmTile,
    me: RowShare,
    staging: Int32,
    address: Int64,
    column: Int32,
    end: cutlass.Constexpr[int],
    order: cutlass.Constexpr[str],
):
    """A box to rows of a matrix, from `column` on, up to column `end`; of gate and up in this order, or of the product."""
    columns = (2 if order else 1) * ctx.config.problem.n
    own = column + me.lane % CHUNKS * 8
    for step in cutlass.range_constexpr(0, WARP_ROWS, ROWS_PER_STEP):
        token = me.warp_token + step + me.lane // CHUNKS
        if (token < tile.valid_m) & (own < end):
            places = lane_places(staging, me.lane, step, order == INTERLEAVED)
            if cutlass.const_expr(len(places) == 1):
                words = load_shared_v4(places[0])
            else:
                (a, c), (b, d) = load_shared_v2(places[0]), load_shared_v2(places[1])
                words = a, b, c, d
            store_v4(address + (Int64(tile.row + token) * columns + own) * 2, tuple(words))


@cute.jit
def store_dots(ctx: GemmContext, tile: GemmTile, me: RowShare, number: Int32, rows: Any, dots: Any):
    """What 128 columns add to the gradients of a thread's two rows' weights, once a quad has added them."""
    args = cast_to(GradientArguments, ctx.args)
    for h in cutlass.range_constexpr(2):
        total = dots[h]
        for mask in cutlass.range_constexpr(1, 3):
            total = total + shuffle_xor_f32(total, mask)
        there = (me.token + 8 * h < tile.valid_m) & (number * DOT_COLUMNS < ctx.config.problem.n)
        if there & (me.pair == 0):
            store_f32(args.dots + (Int64(number) * ctx.args.m + rows[h]) * 4, total)

"""Stores a tile's sums to D on SM90, after adding biases or, with split K, the sums of the cluster's other CTA.

BF16 goes through an SMEM box of the warp: stmatrix, then TMA, which skips what lies beyond D.  If the rows after a partial box belong to
another group, the box is stored row by row.  FP32 goes from registers to memory.

With split K (`finish_split`) CTA r finishes the part of its warpgroup r.  Its other warpgroup waits for exchange_empty and sends its sums
to the same warpgroup of the other CTA, which waits for exchange_full.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device import cast
from ...device.cast import f32_of_bits
from ...device.mbarrier import arrive_expect, release_cluster, wait
from ...device.memory import (
    fence_async_shared,
    load_f32,
    load_f32x2,
    load_float,
    load_floats,
    load_shared_v4,
    store_b16,
    store_f32,
    store_transposed_b16,
    store_v2_f32,
    store_v4,
)
from ...device.ring import TileQueue
from ...device.tma import commit_group, store_tile, wait_group_read
from ...device.warp import in_cta, store_async_v4, sync_warp
from ...hardware.operand_tile import CHUNK, Swizzle
from ..sm90.packed_share import PackedShare
from ..sm90.share import BLOCK_ROWS, ColumnShare, MathThread, RowShare
from .context import GemmContext, GemmTile
from .problem import BF16, GATE_FIRST, INTERLEAVED
from .tile import SWAPPED_COLUMNS, VECTOR, WARPS_PER_GROUP

MATRIX = 8  # rows and columns of what stmatrix writes


@cute.jit
def empty_box(ctx: GemmContext, tile: GemmTile, me: MathThread, row: Any, box: cutlass.Constexpr[int]):
    """Shared address of the warp's box number `box` of a tile, once TMA has read its previous contents; its rows begin at `row`."""
    boxes = ctx.config.epilogue_buffers
    pending = boxes - 1 if box else pending_of_last_tile(ctx.config)
    if is_whole(ctx.config, tile, row):
        wait_group_read(pending)
    else:
        wait_group_read(0)  # this box is stored by threads, not in a TMA group, so groups do not count boxes
    sync_warp()
    group = 0 if ctx.config.split_k else me.group
    return ctx.shared("cd", group * WARPS_PER_GROUP + me.warp, box % boxes)


def is_whole(config: Any, tile: GemmTile, row: Any) -> Any:
    """Whether TMA stores a warp's boxes from `row` on: all their rows are valid, or the rows after them belong to no other group."""
    if not config.problem.has_groups:
        return True
    return tile.valid_m - row >= (config.tile.store_rows if config.problem.has_table else 1)


def pending_of_last_tile(config: Any) -> int:
    """Boxes of the previous tile that TMA may still read when this tile's first is filled: the other buffer, if tiles have even numbers."""
    odd = any(config.tile.boxes(half) % config.epilogue_buffers for half in {False, config.half_tiles})
    return 0 if odd else config.epilogue_buffers - 1


@cute.jit
def store_box(ctx: GemmContext, tile: GemmTile, me: MathThread, staging: Int32, column: Int32, row: Int32):
    """Stores an SMEM box to D at this column and row of the tile; a whole box with TMA, once all lanes have written it."""
    config = ctx.config
    x, y = tile.n_block * config.block_n + column, tile.row + row
    if is_whole(config, tile, row):
        fence_async_shared()
        sync_warp()
        if cute.arch.lane_idx() == 0:
            store_tile(ctx.maps.d, staging, x, y)
            commit_group()
    elif config.problem.has_table:
        sync_warp()
        store_box_rows(ctx, staging, x, y, tile.valid_m - row, me.lane)


@cute.jit
def store_box_rows(ctx: GemmContext, staging: Int32, x: Int32, y: Int32, rows: Int32, lane: Int32, ordered: Callable[..., Any] = tuple):
    """Stores the first `rows` rows of a box, 16 bytes a lane; D has a multiple of 16 columns, so all 8 columns of a lane exist or none."""
    config, tile = ctx.config, ctx.config.tile
    per_row = tile.store_columns // MATRIX
    swizzle = Swizzle(tile.store_swizzle)
    for first in cutlass.range_constexpr(0, tile.store_rows * per_row, 32):
        number = lane + first
        row, chunk = number // per_row, number % per_row
        column = x + chunk * MATRIX
        if (row < rows) & (column < config.problem.d_columns):
            value = load_shared_v4(staging + swizzle(row * (per_row * CHUNK) + chunk * CHUNK))
            store_v4(ctx.args.d + (Int64(y + row) * config.problem.d_columns + column) * 2, ordered(value))
    sync_warp()


def place(ctx: GemmContext, tile: GemmTile, row: Any, column: Any) -> tuple[Any, Any]:
    """Address of an FP32 element of D at a place of a tile, and whether it exists."""
    n = ctx.config.problem.d_columns
    x = tile.n_block * ctx.config.block_n + column
    return ctx.args.d + (Int64(tile.row + row) * n + x) * 4, (row < tile.valid_m) & (x < n)


@cute.jit
def store_pair(ctx: GemmContext, tile: GemmTile, row: Int32, column: Int32, values: Any):
    """Two columns of a row."""
    address, there = place(ctx, tile, row, column)
    if there:
        low, high = values
        if cutlass.const_expr(ctx.config.problem.accumulate):
            old = load_f32x2(address)
            low, high = low + old[0], high + old[1]
        store_v2_f32(address, low, high)


@cute.jit
def store_value(ctx: GemmContext, tile: GemmTile, row: Int32, column: Int32, value: Any):
    """Stores one FP32 element of D, or adds to it where the problem accumulates; places outside the valid rows and columns are left out."""
    address, there = place(ctx, tile, row, column)
    if there:
        if cutlass.const_expr(ctx.config.problem.accumulate):
            value = value + load_f32(address)
        store_f32(address, value)


@cute.jit
def finish_rows(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile to D."""
    columns = ctx.config.tile.store_columns
    first = me.first_chunk * (me.chunks * me.chunk_rows)
    if cutlass.const_expr(ctx.config.epilogue.buffers):
        for box in cutlass.range_constexpr(ctx.config.tile.boxes(me.half)):
            staging = empty_box(ctx, tile, me, me.warp_token, box)
            stage_rows(ctx.config, staging, me, sums, box)
            store_box(ctx, tile, me, staging, first + box * columns, me.warp_token)
    else:
        for part in cutlass.range_constexpr(me.chunks):
            for pair in cutlass.range_constexpr(me.chunk_rows // 4):
                j, h = pair // 2, pair % 2
                column = first + part * me.chunk_rows + 8 * j + me.pair
                store_pair(ctx, tile, me.token + 8 * h, column, sums[part][2 * pair : 2 * pair + 2])


def stage_rows(config: Any, staging: Any, me: RowShare, sums: Any, box: int) -> None:
    """A warp's 16 rows of a box's columns.  Matrix m of a store: 8 rows (m % 2) by 8 columns (m / 2); lane 8 m + r addresses row r."""
    columns, swizzle = config.tile.store_columns, Swizzle(config.tile.store_swizzle)
    row = (me.lane & 15) * (2 * columns)
    groups = columns // MATRIX
    for first in range(0, groups, 2):
        some = range(first, min(first + 2, groups))
        words = []
        for group in some:
            part, j = divmod(box * groups + group, me.chunk_rows // MATRIX)
            words += [cast.pack_bf16(*sums[part][4 * j + 2 * h : 4 * j + 2 * h + 2]) for h in range(2)]
        chunk = (me.lane >> 4) + first if len(some) == 2 else first
        store_b16(staging + swizzle(row + chunk * CHUNK), words)


@cute.jit
def finish_columns(ctx: GemmContext, tile: GemmTile, me: ColumnShare | PackedShare, sums: Any):
    """A warp's part of a tile to D."""
    for block in cutlass.range_constexpr(me.blocks):
        column = (me.group * me.blocks + block) * BLOCK_ROWS + me.warp * SWAPPED_COLUMNS
        if cutlass.const_expr(ctx.config.epilogue.buffers):
            staging = empty_box(ctx, tile, me, 0, block)
            stage_columns(ctx.config, staging, me.lane, sums[block])
            store_box(ctx, tile, me, staging, column, cutlass.Int32(0))
        else:
            for i in cutlass.range_constexpr(len(sums[block])):
                j, h, q = i // 4, i // 2 % 2, i % 2
                store_value(ctx, tile, 8 * j + me.pair + q, column + me.row + 8 * h, sums[block][i])


def stage_columns(config: Any, staging: Any, lane: Any, sums: Any) -> None:
    """A warp's 16 columns of D for the rows of a box.  Matrix m of a store: 8 rows (m / 2) by 8 columns (m % 2)."""
    swizzle = Swizzle(config.tile.store_swizzle)
    groups = len(sums) // 4
    for first in range(0, groups, 2):
        some = range(first, min(first + 2, groups))
        words = [cast.pack_bf16(*sums[4 * j + 2 * h : 4 * j + 2 * h + 2]) for j in some for h in range(2)]
        own = lane if len(some) == 2 else lane & 15
        token = (own & 7) + (own >> 4) * MATRIX + first * MATRIX
        store_transposed_b16(staging + swizzle(token * (2 * SWAPPED_COLUMNS) + ((own >> 3) & 1) * CHUNK), words)


POSITIVE = 0x7FFFFFFF  # all bits but the sign


@cute.jit
def finish_split(ctx: GemmContext, tile: GemmTile, me: MathThread, sums: Any, after_next: TileQueue):
    """Sums of this CTA's half of K to D, or to the CTA that finishes them; `after_next` is the place of the tile after the next one."""
    phase = after_next.ring.index  # of two places: this tile's, too
    if me.group == ctx.cta_rank:
        finish = finish_columns if ctx.config.swap_ab else finish_rows
        finish(ctx, tile, me, add_theirs(ctx, me, sums, phase))
    else:
        send(ctx, me, sums, phase)


@cute.jit
def add_theirs(ctx: GemmContext, me: MathThread, sums: Any, phase: Int32):
    """The sums plus those of the other CTA, whose exchange buffer is then released."""
    full, exchange = ctx.barrier("exchange_full"), ctx.config.smem.region["exchange"].field
    if thread_of(me) == 0:
        arrive_expect(full, exchange.num_bytes)
    wait(full, phase)
    theirs = [word for i in range(exchange.shape[0]) for word in load_shared_v4(ctx.shared("exchange", i, thread_of(me)))]
    read = reduce(or_, map(Int32, theirs))
    release_cluster(in_cta(ctx.barrier("exchange_empty"), 1 - ctx.cta_rank), read & POSITIVE)
    values = iter(theirs)
    return tuple(tuple(one + f32_of_bits(next(values)) for one in part) for part in sums)


@cute.jit
def send(ctx: GemmContext, me: MathThread, sums: Any, phase: Int32):
    """Sends the sums to the other CTA, once it has read those of the previous tile."""
    other = 1 - ctx.cta_rank
    full = in_cta(ctx.barrier("exchange_full"), other)
    values = [one for part in sums for one in part]
    wait(ctx.barrier("exchange_empty"), phase ^ 1)
    for i in cutlass.range_constexpr(ctx.config.smem.region["exchange"].field.shape[0]):
        place = in_cta(ctx.shared("exchange", i, thread_of(me)), other)
        store_async_v4(place, tuple(values[VECTOR * i : VECTOR * (i + 1)]), full)


def thread_of(me: MathThread) -> Any:
    return me.warp * 32 + me.lane


def column_of(config: Any, tile: GemmTile, column: int) -> Any:
    """Row of B of a tile's column number `column`; in a stage gate comes before up."""
    problem = config.problem
    if problem.gate_up == INTERLEAVED:
        return tile.n_block * config.block_n + column
    rows = config.block_n // 2
    up, within = divmod(column, rows)
    second = up == (problem.gate_up == GATE_FIRST)
    return tile.n_block * rows + within + second * (problem.n // 2)


def with_bias(ctx: GemmContext, tile: GemmTile, me: MathThread, sums: Any) -> Any:
    """Adds biases, if the problem has any."""
    if not ctx.config.problem.biases:
        return sums
    return (columns_with_bias if ctx.config.swap_ab else rows_with_bias)(ctx, tile, me, sums)


def bias_address(ctx: GemmContext, tile: GemmTile, column: int, first: Any, together: int) -> Any:
    """Address of `together` adjacent biases from column `column + first` of a tile on, clamped to the last columns: sums beyond them are
    not stored."""
    config, problem = ctx.config, ctx.config.problem
    row = (column_of(config, tile, column) if problem.gate_up else tile.n_block * config.block_n + column) + first
    if problem.n % config.block_n:
        row = cutlass.min(row, problem.n - together)
    return ctx.args.bias + (Int64(tile.group) * problem.group_rows + row) * (2 if problem.biases == BF16 else 4)


def rows_with_bias(ctx: GemmContext, tile: GemmTile, me: Any, sums: Any) -> tuple[tuple[Any, ...], ...]:
    """Adds biases to a share whose rows of A are the wgmma's rows: a thread has two of them, and two columns of every eight."""
    bf16, own, out = ctx.config.problem.biases == BF16, me.first_chunk * (me.chunks * me.chunk_rows) + me.pair, []
    for c, part in enumerate(sums):
        values = []
        for j in range(me.chunk_rows // 8):
            biases = load_floats(bias_address(ctx, tile, c * me.chunk_rows + 8 * j, own, 2), bf16)
            values += [part[4 * j + 2 * h + e] + biases[e] for h in range(2) for e in range(2)]
        out.append(tuple(values))
    return tuple(out)


def columns_with_bias(ctx: GemmContext, tile: GemmTile, me: Any, sums: Any) -> tuple[tuple[Any, ...], ...]:
    """Adds biases to a share whose rows of A are the wgmma's columns: a thread has two of every eight, and two columns of D a block."""
    bf16, own = ctx.config.problem.biases == BF16, me.group * (me.blocks * BLOCK_ROWS) + me.warp * 16 + me.row
    out = []
    for b, part in enumerate(sums):
        biases = [load_float(bias_address(ctx, tile, b * BLOCK_ROWS + 8 * h, own, 1), bf16) for h in range(2)]
        out.append(tuple(value + biases[i // 2 % 2] for i, value in enumerate(part)))
    return tuple(out)

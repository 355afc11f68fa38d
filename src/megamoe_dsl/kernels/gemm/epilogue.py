"""Epilogues of the GEMM kernel: sums to D.  Every warp writes what it has, on its own.

BF16 goes through a box of SMEM that is the warp's, of which it has two: stmatrix, then TMA, which leaves out what lies beyond D.  Where
rows that follow belong to another group, a box that is not full goes row by row.  FP32 goes from registers to memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.sm90.main_loop import Share
from ...blocks.sm90.tokens_as_n import BLOCK_ROWS, ColumnShare
from ...device import cast
from ...device.matrix import store_b16, store_transposed_b16
from ...device.memory import fence_async_shared, load_f32, load_f32x2, load_shared_v4, store_f32, store_v2_f32, store_v4
from ...device.tma import commit_group, store_tile, wait_group_read
from ...device.warp import sync_warp
from ...hardware.swizzle import CHUNK, Swizzle
from .config import GemmConfig
from .context import GemmContext
from .problem import F32
from .smem_plan import STORE_BUFFERS
from .tile import SWAPPED_COLUMNS
from .work_tile import WorkTile

MATRIX = 8  # rows and columns of what stmatrix writes


@cute.jit
def finish_tile(ctx: GemmContext, tile: WorkTile, me: Share, sums: Any):
    """A warp's part of a tile."""
    if cutlass.const_expr(ctx.config.problem.output == F32):
        store_values(ctx, tile, me, sums)
    else:
        first_wait = pending_of_last_tile(ctx.config)
        for box in cutlass.range_constexpr(ctx.config.tile.boxes(me.has_own_weights)):
            staging = ctx.shared("cd", me.group * 4 + me.warp, box % STORE_BUFFERS)
            wait_group_read(STORE_BUFFERS - 1 if box else first_wait)
            sync_warp()
            if cutlass.const_expr(isinstance(me, ColumnShare)):
                stage_columns(ctx.config, staging, me, sums[box])
            else:
                stage_rows(ctx.config, staging, me, sums, box)
            store_box(ctx, tile, me, staging, box)


def pending_of_last_tile(config: GemmConfig) -> int:
    """Boxes of the last tile that TMA may still read when the first of this one is filled: its other one, unless they came in odd
    numbers."""
    odd = any(config.tile.boxes(half) % STORE_BUFFERS for half in {False, config.halves})
    return 0 if odd else STORE_BUFFERS - 1


def box_origin(config: GemmConfig, me: Share, box: int) -> tuple[Any, Any]:
    """(column, row) of a box within its tile."""
    if isinstance(me, ColumnShare):
        return (me.group * me.blocks + box) * BLOCK_ROWS + me.warp * SWAPPED_COLUMNS, 0
    return me.first_chunk * (me.chunks * me.chunk_rows) + box * config.tile.store_columns, me.warp_token


@cute.jit
def store_box(ctx: GemmContext, tile: WorkTile, me: Share, staging: Int32, box: cutlass.Constexpr[int]):
    """A box that lies in SMEM to D."""
    config = ctx.config
    column, row = box_origin(config, me, box)
    x, y = tile.n_block * config.block_n + column, tile.row + row
    rows = tile.valid_m - row
    if cutlass.const_expr(config.problem.has_groups):
        # Whole boxes, or none of a block without a group.
        by_rows = config.problem.has_partial_tiles
        if rows >= (config.tile.store_rows if by_rows else 1):
            store_whole_box(ctx, staging, x, y)
        else:
            if cutlass.const_expr(by_rows):
                sync_warp()
                store_box_rows(ctx, staging, x, y, rows, me.lane)
            commit_group()  # nothing: boxes are counted by groups
    else:
        store_whole_box(ctx, staging, x, y)


@cute.jit
def store_whole_box(ctx: GemmContext, staging: Int32, x: Int32, y: Int32):
    """By TMA, once all lanes have written; the group is lane 0's."""
    fence_async_shared()
    sync_warp()
    if cute.arch.lane_idx() == 0:
        store_tile(ctx.maps.d, staging, x, y)
        commit_group()


@cute.jit
def store_box_rows(ctx: GemmContext, staging: Int32, x: Int32, y: Int32, rows: Int32, lane: Int32):
    """The first `rows` rows, 16 bytes a lane; D has a multiple of 16 columns, so that 8 of them are all there or not."""
    config, tile = ctx.config, ctx.config.tile
    per_row = tile.store_columns // MATRIX
    swizzle = Swizzle(tile.store_swizzle)
    for first in cutlass.range_constexpr(0, tile.store_rows * per_row, 32):
        number = lane + first
        row, chunk = number // per_row, number % per_row
        column = x + chunk * MATRIX
        if (row < rows) & (column < config.problem.n):
            value = load_shared_v4(staging + swizzle(row * (per_row * CHUNK) + chunk * CHUNK))
            store_v4(ctx.args.d + (Int64(y + row) * config.problem.n + column) * 2, value)
    sync_warp()


def stage_rows(config: GemmConfig, staging: Any, me: Any, sums: Any, box: int) -> None:
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


def stage_columns(config: GemmConfig, staging: Any, me: ColumnShare, sums: Any) -> None:
    """A warp's 16 columns of D for all rows of the tile.  Matrix m of a store: 8 rows (m / 2) by 8 columns (m % 2)."""
    swizzle = Swizzle(config.tile.store_swizzle)
    groups = me.tokens // MATRIX
    for first in range(0, groups, 2):
        some = range(first, min(first + 2, groups))
        words = [cast.pack_bf16(*sums[4 * j + 2 * h : 4 * j + 2 * h + 2]) for j in some for h in range(2)]
        lane = me.lane if len(some) == 2 else me.lane & 15
        token = (lane & 7) + (lane >> 4) * MATRIX + first * MATRIX
        store_transposed_b16(staging + swizzle(token * (2 * SWAPPED_COLUMNS) + ((lane >> 3) & 1) * CHUNK), words)


@cute.jit
def store_values(ctx: GemmContext, tile: WorkTile, me: Share, sums: Any):
    """FP32, two columns or one at a time; added to what is there if the problem says so."""
    config = ctx.config
    for part in cutlass.range_constexpr(len(sums)):
        for pair in cutlass.range_constexpr(len(sums[part]) // 2):
            values = sums[part][2 * pair : 2 * pair + 2]
            j, h = pair // 2, pair % 2
            if cutlass.const_expr(isinstance(me, ColumnShare)):
                column = (me.group * me.blocks + part) * BLOCK_ROWS + 16 * me.warp + me.row + 8 * h
                for q in cutlass.range_constexpr(2):
                    store_value(ctx, tile, 8 * j + me.pair + q, column, values[q])
            else:
                column = me.first_chunk * (me.chunks * me.chunk_rows) + part * me.chunk_rows + 8 * j + me.pair
                store_pair(ctx, tile, me.token + 8 * h, column, values)


def place(ctx: GemmContext, tile: WorkTile, row: Any, column: Any) -> tuple[Any, Any]:
    """Address of an element of D, FP32, at a place of a tile, and whether it is there."""
    n = ctx.config.problem.n
    x = tile.n_block * ctx.config.block_n + column
    return ctx.args.d + (Int64(tile.row + row) * n + x) * 4, (row < tile.valid_m) & (x < n)


@cute.jit
def store_pair(ctx: GemmContext, tile: WorkTile, row: Int32, column: Int32, values: Any):
    """Two columns of a row."""
    address, there = place(ctx, tile, row, column)
    if there:
        low, high = values
        if cutlass.const_expr(ctx.config.problem.accumulate):
            old = load_f32x2(address)
            low, high = low + old[0], high + old[1]
        store_v2_f32(address, low, high)


@cute.jit
def store_value(ctx: GemmContext, tile: WorkTile, row: Int32, column: Int32, value: Any):
    """One element."""
    address, there = place(ctx, tile, row, column)
    if there:
        if cutlass.const_expr(ctx.config.problem.accumulate):
            value = value + load_f32(address)
        store_f32(address, value)

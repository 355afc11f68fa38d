"""Varlen-K on SM90: loaders of operands whose K runs over a group's rows (64 rows a stage, boxes of 64 columns, swizzled as by TMA), and
epilogues: BF16 whose columns are the wgmma's rows, or FP32 that TMA adds to D.

Both loaders wait for work_tile_full per tile and empty per stage; every thread signals full once its copies are done, or with the bytes of
TMA.  Rows beyond a group's and columns beyond the matrix become zero.  A group without rows has one stage of zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.mbarrier import arrive, arrive_expect
from ...device.memory import (
    VECTOR,
    arrive_when_copied,
    copy_vector,
    fence_async_shared,
    store_shared_f32,
    store_shared_f32x2,
)
from ...device.ring import Stage
from ...device.tma import add_tile, commit_group, wait_group_read
from ...device.warp import elect, shuffle, sync_warp
from ...hardware.operand_tile import BOX_BYTES, K_ROWS, ROW_BYTES, SW128, Swizzle
from ...layouts.arith import select
from ..sm90.share import RowShare
from .context import GemmContext, GemmTile, next_tile
from .gather import listed_in, source_of
from .load import column_tile
from .store import empty_box, stage_columns, store_box
from .tile import ADDED_COLUMNS, WARPS_PER_GROUP

HALF = 16  # lanes that copy 256 bytes of a row


def copy_chunk(ctx: GemmContext, address: Any, row: Any, chunk: Any, source: Any, there: Any) -> None:
    """Copies 16 bytes of a row of K, chunk `chunk` of the tile's row, from `source` into the operand at `address`; zeros unless `there`."""
    place = (chunk >> 3) * BOX_BYTES + row * ROW_BYTES + SW128.chunk(chunk, row)
    copy_vector(address + place, source, select(there, Int32(VECTOR), Int32(0)))


@cute.jit
def gather_columns(ctx: GemmContext, number: Int32):
    """Gathers rows in warp `number` of two.  Each lane loads the source of one row of the next stage while the current stage is copied."""
    problem, lane = ctx.config.problem, cute.arch.lane_idx()
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        rows, first = ctx.rows_of_group(tile)
        column = (tile.row - tile.group * problem.tile_rows) * 2 + lane % HALF * VECTOR
        base, in_row = ctx.args.a + Int64(column), column < 2 * problem.tile_rows
        own = (lane // 2) * 4 + number * 2 + lane % 2
        listed = listed_in(ctx, rows, first, own)
        for k in cutlass.range(rows // K_ROWS, unroll=1):
            source = source_of(ctx, listed)
            listed = listed_in(ctx, rows, first, own + (k + 1) * K_ROWS)
            stage = gather_stage(ctx, stage, number, base, source, in_row)
        left = rows % K_ROWS
        if (left != 0) | (rows == 0):
            stage = gather_stage(ctx, stage, number, base, source_of(ctx, listed), in_row, left)
        tile, tiles = next_tile(tiles)


def gather_stage(ctx: GemmContext, stage: Stage, number: Any, base: Any, source: Any, in_row: Any, left: Any = None) -> Stage:
    """Copies a stage's rows of warp `number`: lane l copies chunk l % 16 of row l / 16 of a pair of rows, and the warps take pairs in turn.
    `source` is that of one of the warp's rows; `left` counts those of a group's last stage.  Returns the next stage."""
    stage.wait_empty()
    lane, tokens, row_bytes = cute.arch.lane_idx(), stage.shared("tokens"), 2 * ctx.config.problem.tile_rows
    half, chunk = lane // HALF, lane % HALF
    for turn in range(K_ROWS // 4):
        row, address = 4 * turn + 2 * number + half, base + Int64(shuffle(source, 2 * turn + half)) * row_bytes
        copy_chunk(ctx, tokens, row, chunk, address, in_row if left is None else (row < left) & in_row)
    arrive_when_copied(stage.full)
    return stage.next()


@cute.jit
def load_columns(ctx: GemmContext):
    """Sorted rows, by one warp."""
    lane = cute.arch.lane_idx()
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        rows, first = ctx.rows_of_group(tile)
        columns = column_tile(ctx, tile, first)
        for k in cutlass.range(rows // K_ROWS, unroll=1):
            stage.wait_empty()
            if elect():
                arrive_expect(stage.full, columns.num_bytes)
                columns.load(stage.shared("weights"), stage.full, k)
            else:
                arrive(stage.full)
            stage = stage.next()
        if (rows % K_ROWS != 0) | (rows == 0):
            stage.wait_empty()
            copy_rows(ctx, stage, lane, rows, first, columns.column)
            arrive_when_copied(stage.full)
            stage = stage.next()
        tile, tiles = next_tile(tiles)


@cute.jit
def copy_rows(ctx: GemmContext, stage: Stage, lane: Int32, rows: Int32, first: Int32, column: Int32):
    """Copies a last stage of fewer than 64 rows; each lane copies one chunk of every row."""
    whole, row_bytes = rows // K_ROWS * K_ROWS, 2 * ctx.config.problem.tile_columns
    at, chunks = column + lane * VECTOR, ctx.config.block_n // 8
    source = ctx.args.b + Int64(first + whole) * row_bytes + at
    if lane < chunks:
        for row in cutlass.range(K_ROWS, unroll=8):
            copy_chunk(ctx, stage.shared("weights"), row, lane, source + Int64(row) * row_bytes, (whole + row < rows) & (at < row_bytes))


@cute.jit
def finish_transposed(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """Stores a warp's part of a tile, 16 columns of D."""
    config, problem = ctx.config, ctx.config.problem
    first = tile.row - tile.group * problem.tile_rows + me.warp_token
    before = tile.n_block * config.block_n
    rows = replace(tile, n_block=Int32(0), row=tile.group * problem.tile_columns + before, valid_m=problem.tile_columns - before)
    for box in cutlass.range_constexpr(config.tile.boxes(False)):
        row = box * config.tile.store_rows
        staging = empty_box(ctx, rows, me, row, box)
        stage_columns(config, staging, me.lane, sums[0][row // 2 : (row + config.tile.store_rows) // 2])
        store_box(ctx, rows, me, staging, first, Int32(row))


@cute.jit
def add_sums(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """Adds a warp's part of a tile to an FP32 D with TMA, 32 columns of the sorted operand at a time.  D has a multiple of 32 columns, so
    either all rows of a box are the group's or none."""
    config, problem, transposes = ctx.config, ctx.config.problem, ctx.config.problem.transposes
    gathered = tile.row - tile.group * problem.tile_rows + me.warp_token
    first_row, buffers = tile.group * problem.n, config.epilogue_buffers
    for box in cutlass.range_constexpr(config.block_n // ADDED_COLUMNS):
        wait_group_read(buffers - 1)
        sync_warp()
        staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, box % buffers)
        stage_floats(config.epilogue, staging, me, sums[0][box * 16 : box * 16 + 16])
        fence_async_shared()
        sync_warp()
        own = tile.n_block * config.block_n + box * ADDED_COLUMNS
        column, row = (gathered, own) if transposes else (own, gathered)
        if cute.arch.lane_idx() == 0:
            if row < problem.n:
                add_tile(ctx.maps.d, staging, column, first_row + row)
            commit_group()


def stage_floats(epilogue: Any, staging: Any, me: RowShare, sums: Any) -> None:
    """Stages a thread's sums of 32 columns of the tile: two of every eight in each of its two rows."""
    swizzle = Swizzle(epilogue.swizzle)
    for i in range(0, len(sums), 2):
        row, column = me.row + 8 * (i // 2 % 2), 8 * (i // 4) + me.pair
        if epilogue.transposes:
            for e in range(2):
                store_shared_f32(staging + swizzle((column + e) * epilogue.swizzle + row * 4), sums[i + e])
        else:
            store_shared_f32x2(staging + swizzle(row * epilogue.swizzle + column * 4), *sums[i : i + 2])

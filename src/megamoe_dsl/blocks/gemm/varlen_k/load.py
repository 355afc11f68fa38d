"""The loader warps where K are the rows of a group: 64 rows a stage, of 64 columns after another, as TMA swizzles them.

| role | waits | signals |
|---|---|---|
| gather_columns | work_tile_full per tile; empty per stage | work_tile_empty per tile; full per stage, every thread once it has copied |
| load_columns   | the same | the same, every lane: once it has copied, or with the bytes that TMA brings |

Rows beyond a group's, and columns that are not there, become zero.  A group without rows has one stage of zeros.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import arrive, arrive_expect
from ....device.memory import VECTOR, arrive_when_copied, copy_vector, load_shared_v2
from ....device.ring import Stage
from ....device.warp import elect, shuffle
from ....hardware.operand_tile import BOX_BYTES, K_ROWS, ROW_BYTES, SW128
from ....layouts.arith import minimum, select
from ...gemm.context import GemmContext, GemmTile, next_tile
from ..gather import source_of
from ..load import column_tile

HALF = 16
"""Lanes that copy 256 bytes of a row."""


def rows_of_group(ctx: GemmContext, tile: GemmTile) -> tuple[Int32, Int32]:
    """How many rows the tile's group has, and the first of them."""
    rows, first = load_shared_v2(ctx.shared("group_table", tile.group))
    return Int32(rows), Int32(first)


def copy_chunk(ctx: GemmContext, address: Any, row: Any, chunk: Any, source: Any, there: Any) -> None:
    """16 bytes of a row of K into its operand at `address`: chunk `chunk` of the tile's, from `source`, or zeros."""
    place = (chunk >> 3) * BOX_BYTES + row * ROW_BYTES + SW128.chunk(chunk, row)
    copy_vector(address + place, source, select(there, Int32(VECTOR), Int32(0)))


@cute.jit
def gather_columns(ctx: GemmContext, number: Int32):
    """Gathered rows, by the warp with this number of two: lane l copies chunk l % 16 of row l / 16 of every two, and every second two are
    this warp's.  A lane knows the source of one row of a stage, and learns it while the stage before is on its way."""
    config, lane = ctx.config, cute.arch.lane_idx()
    problem, half, chunk = config.problem, lane // HALF, lane % HALF
    row_bytes = 2 * problem.gathered_columns
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        rows, first = rows_of_group(ctx, tile)
        column = (tile.row - tile.group * problem.gathered_columns) * 2 + chunk * VECTOR
        base, in_row = ctx.args.a + Int64(column), column < row_bytes
        own = (lane // 2) * 4 + number * 2 + lane % 2
        listed = source_in(ctx, rows, first, own)
        for k in cutlass.range(ctx.k_blocks_of(tile), unroll=1):
            stage.wait_empty()
            tokens, current = stage.shared("tokens"), listed
            for turn in cutlass.range_constexpr(K_ROWS // 4):
                source, row = shuffle(current, 2 * turn + half), 4 * turn + 2 * number + half
                there = (source >= 0) & in_row
                copy_chunk(ctx, tokens, row, chunk, base + Int64(cutlass.max(source, Int32(0))) * row_bytes, there)
            arrive_when_copied(stage.full)
            listed = source_in(ctx, rows, first, own + (k + 1) * K_ROWS)
            stage = stage.next()
        tile, tiles = next_tile(tiles)


def source_in(ctx: GemmContext, rows: Any, first: Any, number: Any) -> Any:
    """Row of the gathered matrix of a group's row; -1 beyond the group's."""
    return select(number < rows, source_of(ctx, first + minimum(number, rows)), Int32(-1))


@cute.jit
def load_columns(ctx: GemmContext):
    """Sorted rows, by one warp."""
    lane = cute.arch.lane_idx()
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        rows, first = rows_of_group(ctx, tile)
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
    """A last stage with fewer than 64 rows: a lane copies one chunk of each."""
    whole, row_bytes = rows // K_ROWS * K_ROWS, 2 * ctx.config.problem.sorted_columns
    at, chunks = column + lane * VECTOR, ctx.config.block_n // 8
    source = ctx.args.b + Int64(first + whole) * row_bytes + at
    if lane < chunks:
        for row in cutlass.range(K_ROWS, unroll=8):
            there = (whole + row < rows) & (at < row_bytes)
            copy_chunk(ctx, stage.shared("weights"), row, lane, source + Int64(row) * row_bytes, there)

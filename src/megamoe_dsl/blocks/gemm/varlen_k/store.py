"""From a warp to D: BF16 whose columns are the wgmma's rows, through boxes of 64 rows by 16 columns; FP32 that TMA adds to what is
there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device import cast
from ....device.memory import fence_async_shared, store_shared_f32, store_shared_f32x2, store_transposed_b16
from ....device.tma import add_tile, commit_group, wait_group_read
from ....device.warp import sync_warp
from ....hardware.operand_tile import CHUNK, Swizzle
from ...sm90.tokens_as_m import RowShare
from ..context import GemmContext, GemmTile
from ..store import MATRIX, empty_box, store_box
from ..tile import SWAPPED_COLUMNS, WARPS_PER_GROUP
from .config import ADDED_COLUMNS


@cute.jit
def finish_transposed(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile, 16 columns of D, to D."""
    config, problem = ctx.config, ctx.config.problem
    first = tile.row - tile.group * problem.gathered_columns + me.warp_token
    before = tile.n_block * config.block_n
    rows = replace(tile, n_block=Int32(0), row=tile.group * problem.sorted_columns + before, valid_m=problem.sorted_columns - before)
    for box in cutlass.range_constexpr(config.tile.boxes(False)):
        row = box * config.tile.store_rows
        staging = empty_box(ctx, rows, me, row, box)
        stage_transposed(config, staging, me.lane, sums[0][row // 2 : (row + config.tile.store_rows) // 2])
        store_box(ctx, rows, me, staging, first, Int32(row))


def stage_transposed(config: Any, staging: Any, lane: Any, sums: Any) -> None:
    """A warp's 16 columns of D for the rows of a box.  Matrix m of a store: 8 rows (m / 2) by 8 columns (m % 2)."""
    swizzle = Swizzle(config.tile.store_swizzle)
    row, chunk = (lane & 7) + (lane >> 4) * MATRIX, (lane >> 3) & 1
    for first in range(0, len(sums) // 4, 2):
        words = [cast.pack_bf16(*sums[4 * j + 2 * h : 4 * j + 2 * h + 2]) for j in (first, first + 1) for h in range(2)]
        place = (row + first * MATRIX) * (2 * SWAPPED_COLUMNS) + chunk * CHUNK
        store_transposed_b16(staging + swizzle(place), words)


@cute.jit
def add_sums(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile to an FP32 D, to which TMA adds it, 32 sorted columns after another.  Columns of D are a multiple of 32, so
    that all rows of a box are the group's, or none; D has no columns beyond."""
    config, problem, transposes = ctx.config, ctx.config.problem, ctx.config.problem.transposes
    gathered = tile.row - tile.group * problem.gathered_columns + me.warp_token
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
    """A thread's sums of 32 columns of the tile: two of each eight in each of its two rows."""
    swizzle = Swizzle(epilogue.swizzle)
    for i in range(0, len(sums), 2):
        row, column = me.row + 8 * (i // 2 % 2), 8 * (i // 4) + me.pair
        if epilogue.transposes:
            for e in range(2):
                store_shared_f32(staging + swizzle((column + e) * epilogue.swizzle + row * 4), sums[i + e])
        else:
            store_shared_f32x2(staging + swizzle(row * epilogue.swizzle + column * 4), *sums[i : i + 2])

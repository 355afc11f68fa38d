"""From a warp to D.  Every warp writes what it has, on its own.

BF16 goes through a box of SMEM that is the warp's, of which it has two: stmatrix, then TMA, which leaves out what lies beyond D.  Where
rows that follow belong to another group, a box that is not full goes row by row.  FP32 goes from registers to memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import fence_async_shared, load_f32, load_f32x2, load_shared_v4, store_f32, store_v2_f32, store_v4
from ...device.tma import commit_group, store_tile, wait_group_read
from ...device.warp import sync_warp
from ...hardware.operand_tile import CHUNK, Swizzle
from ..sm90.math_thread import MathThread
from .context import GemmContext
from .tile import WARPS_PER_GROUP
from .work_tile import GemmTile

MATRIX = 8  # rows and columns of what stmatrix writes


@cute.jit
def empty_box(ctx: GemmContext, tile: GemmTile, me: MathThread, row: Any, box: cutlass.Constexpr[int]):
    """Shared address of a warp's next box, once TMA has read what was in it; `box` counts within a tile, whose rows begin at `row` for the
    warp."""
    boxes = ctx.config.epilogue_buffers
    pending = boxes - 1 if box else pending_of_last_tile(ctx.config)
    if is_whole(ctx.config, tile, row):
        wait_group_read(pending)
    else:
        wait_group_read(0)  # what follows is no group of TMA's, by which boxes are counted
    sync_warp()
    group = 0 if ctx.config.split_k else me.group
    return ctx.shared("cd", group * WARPS_PER_GROUP + me.warp, box % boxes)


def is_whole(config: Any, tile: GemmTile, row: Any) -> Any:
    """Whether TMA stores a warp's boxes of a tile, whose rows begin at `row`: all rows are to be written, or none belong to others."""
    if not config.problem.has_groups:
        return True
    return tile.valid_m - row >= (config.tile.store_rows if config.problem.has_partial_tiles else 1)


def pending_of_last_tile(config: Any) -> int:
    """Boxes of the last tile that TMA may still read when the first of this one is filled: its other one, unless they came in odd
    numbers."""
    odd = any(config.tile.boxes(half) % config.epilogue_buffers for half in {False, config.half_tiles})
    return 0 if odd else config.epilogue_buffers - 1


@cute.jit
def store_box(ctx: GemmContext, tile: GemmTile, me: MathThread, staging: Int32, column: Int32, row: Int32):
    """A box that lies in SMEM to D, from this column and row of the tile on."""
    config = ctx.config
    x, y = tile.n_block * config.block_n + column, tile.row + row
    if is_whole(config, tile, row):
        store_whole_box(ctx, staging, x, y)
    elif config.problem.has_partial_tiles:
        sync_warp()
        store_box_rows(ctx, staging, x, y, tile.valid_m - row, me.lane)


@cute.jit
def store_whole_box(ctx: GemmContext, staging: Int32, x: Int32, y: Int32):
    """By TMA, once all lanes have written; the group is lane 0's."""
    fence_async_shared()
    sync_warp()
    if cute.arch.lane_idx() == 0:
        store_tile(ctx.maps.d, staging, x, y)
        commit_group()


@cute.jit
def store_box_rows(
    ctx: GemmContext,
    staging: Int32,
    x: Int32,
    y: Int32,
    rows: Int32,
    lane: Int32,
    ordered: cutlass.Constexpr[Callable[..., Any]] = tuple,
):
    """The first `rows` rows, 16 bytes a lane, `ordered`; D has a multiple of 16 columns, so that 8 of them are all there or not."""
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
    """Address of an element of D, FP32, at a place of a tile, and whether it is there."""
    n = ctx.config.problem.n
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

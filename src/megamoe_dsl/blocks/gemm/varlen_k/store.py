"""From a warp to a D whose columns are the wgmma's rows: BF16 through boxes of 64 rows by 16 columns, FP32 from registers to memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device import cast
from ....device.memory import store_transposed_b16
from ....hardware.operand_tile import CHUNK, Swizzle
from ...sm90.tokens_as_m import RowShare
from ..context import GemmContext, GemmTile
from ..store import MATRIX, empty_box, store_box, store_value
from ..tile import SWAPPED_COLUMNS


@cute.jit
def finish_transposed(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile, 16 columns of D, to D."""
    config, problem = ctx.config, ctx.config.problem
    first = tile.row - tile.group * problem.gathered_columns + me.warp_token
    before = tile.n_block * config.block_n
    rows = replace(tile, n_block=Int32(0), row=tile.group * problem.sorted_columns + before, valid_m=problem.sorted_columns - before)
    if cutlass.const_expr(config.epilogue.buffers):
        for box in cutlass.range_constexpr(config.tile.boxes(False)):
            row = box * config.tile.store_rows
            staging = empty_box(ctx, rows, me, row, box)
            stage_transposed(config, staging, me.lane, sums[0][row // 2 : (row + config.tile.store_rows) // 2])
            store_box(ctx, rows, me, staging, first, Int32(row))
    else:
        for i in cutlass.range_constexpr(len(sums[0])):
            j, h, e = i // 4, i // 2 % 2, i % 2
            store_value(ctx, rows, 8 * j + me.pair + e, first + me.row + 8 * h, sums[0][i])


def stage_transposed(config: Any, staging: Any, lane: Any, sums: Any) -> None:
    """A warp's 16 columns of D for the rows of a box.  Matrix m of a store: 8 rows (m / 2) by 8 columns (m % 2)."""
    swizzle = Swizzle(config.tile.store_swizzle)
    row, chunk = (lane & 7) + (lane >> 4) * MATRIX, (lane >> 3) & 1
    for first in range(0, len(sums) // 4, 2):
        words = [cast.pack_bf16(*sums[4 * j + 2 * h : 4 * j + 2 * h + 2]) for j in (first, first + 1) for h in range(2)]
        place = (row + first * MATRIX) * (2 * SWAPPED_COLUMNS) + chunk * CHUNK
        store_transposed_b16(staging + swizzle(place), words)

"""The epilogue of tiles whose rows of A are the wgmma's rows (blocks/sm90/tokens_as_m.py): a warp has 16 rows of D."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from ...device import cast
from ...device.memory import store_b16
from ...hardware.operand_tile import CHUNK, Swizzle
from ..sm90.tokens_as_m import RowShare
from .context import GemmContext
from .store import MATRIX, empty_box, store_box, store_pair
from .work_tile import GemmTile


@cute.jit
def finish_tile(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile to D."""
    columns = ctx.config.tile.store_columns
    first = me.first_chunk * (me.chunks * me.chunk_rows)
    if cutlass.const_expr(ctx.config.epilogue.buffers):
        for box in cutlass.range_constexpr(ctx.config.tile.boxes(me.half)):
            staging = empty_box(ctx, tile, me, me.warp_token, box)
            stage_box(ctx.config, staging, me, sums, box)
            store_box(ctx, tile, me, staging, first + box * columns, me.warp_token)
    else:
        for part in cutlass.range_constexpr(me.chunks):
            for pair in cutlass.range_constexpr(me.chunk_rows // 4):
                j, h = pair // 2, pair % 2
                column = first + part * me.chunk_rows + 8 * j + me.pair
                store_pair(ctx, tile, me.token + 8 * h, column, sums[part][2 * pair : 2 * pair + 2])


def stage_box(config: Any, staging: Any, me: RowShare, sums: Any, box: int) -> None:
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

"""The epilogue of tiles whose rows of A are the wgmma's columns (blocks/sm90/tokens_as_n.py, packed_share.py): a warp has 16 columns of D
for every block of 64 rows of B."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from ...device import cast
from ...device.memory import store_transposed_b16
from ...hardware.operand_tile import CHUNK, Swizzle
from ..sm90.packed_share import PackedShare
from ..sm90.tokens_as_n import BLOCK_ROWS, ColumnShare
from .context import GemmContext
from .store import MATRIX, empty_box, store_box, store_value
from .tile import SWAPPED_COLUMNS
from .work_tile import GemmTile


@cute.jit
def finish_tile(ctx: GemmContext, tile: GemmTile, me: ColumnShare | PackedShare, sums: Any):
    """A warp's part of a tile to D."""
    for block in cutlass.range_constexpr(me.blocks):
        column = (me.group * me.blocks + block) * BLOCK_ROWS + me.warp * SWAPPED_COLUMNS
        if cutlass.const_expr(ctx.config.epilogue.buffers):
            staging = empty_box(ctx, tile, me, 0, block)
            stage_box(ctx.config, staging, me, sums[block])
            store_box(ctx, tile, me, staging, column, cutlass.Int32(0))
        else:
            for i in cutlass.range_constexpr(len(sums[block])):
                j, h, q = i // 4, i // 2 % 2, i % 2
                store_value(ctx, tile, 8 * j + me.pair + q, column + me.row + 8 * h, sums[block][i])


def stage_box(config: Any, staging: Any, me: ColumnShare | PackedShare, sums: Any) -> None:
    """A warp's 16 columns of D for all rows of the tile.  Matrix m of a store: 8 rows (m / 2) by 8 columns (m % 2)."""
    swizzle = Swizzle(config.tile.store_swizzle)
    groups = me.tokens // MATRIX
    for first in range(0, groups, 2):
        some = range(first, min(first + 2, groups))
        words = [cast.pack_bf16(*sums[4 * j + 2 * h : 4 * j + 2 * h + 2]) for j in some for h in range(2)]
        lane = me.lane if len(some) == 2 else me.lane & 15
        token = (lane & 7) + (lane >> 4) * MATRIX + first * MATRIX
        store_transposed_b16(staging + swizzle(token * (2 * SWAPPED_COLUMNS) + ((lane >> 3) & 1) * CHUNK), words)

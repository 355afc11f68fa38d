"""The epilogue of tiles of gate and up in BF16: activated, row by row to D, 64 channels at a time.

A thread's activated channels take the places of sums of a tile half as wide, whose boxes are those of any result in BF16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute

from ....device.cast import joined_pairs
from ....device.warp import sync_warp
from ...sm90.tokens_as_m import RowShare
from ..context import GemmContext
from ..epilogue_rows import stage_box
from ..store import store_box_rows
from ..tile import WARPS_PER_GROUP
from ..work_tile import GemmTile
from .epilogue_gate_up import channels, store_preactivations
from .problem import INTERLEAVED


@cute.jit
def finish_gate_up_bf16(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile to D."""
    config, problem = ctx.config, ctx.config.problem
    staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, 0)
    if cutlass.const_expr(problem.preactivations):
        store_preactivations(ctx, tile, me, sums, staging)
    columns, box_columns = config.block_n // 2, config.tile.store_columns
    half, activated = replace(me, chunk_rows=columns), (in_accumulator(ctx, sums),)
    ordered = joined_pairs if problem.gate_up == INTERLEAVED else tuple
    row, rows = tile.row + me.warp_token, tile.valid_m - me.warp_token
    for box in cutlass.range_constexpr(columns // box_columns):
        stage_box(config, staging, half, activated, box)
        sync_warp()
        store_box_rows(ctx, staging, tile.n_block * columns + box * box_columns, row, rows, me.lane, ordered)


def in_accumulator(ctx: GemmContext, sums: Any) -> tuple[Any, ...]:
    """Activated channels of a thread's two rows, as an accumulator has values: two of each 8 channels of a row.

    Interleaved: channels q and q + 4 of lane q of a quad.
    """
    rows = [channels(ctx, sums, h) for h in range(2)]
    return tuple(row[2 * j + e] for j in range(len(rows[0]) // 2) for row in rows for e in range(2))

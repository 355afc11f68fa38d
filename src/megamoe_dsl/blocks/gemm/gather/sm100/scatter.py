"""Rows of a pass to D, four at a time, wherever they lie."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .....device.tma import commit_group, scatter_rows
from .....layouts.arith import select
from ....sm100.epilogue_tile import HALF_CHANNELS, PASS_ROWS
from ....sm100.results import ResultPart
from ...context import GemmContext
from ...tile import WARPS_PER_GROUP
from ...work_tile import GemmTile

ROWS = 4  # of a scatter4
WARP_ROWS = PASS_ROWS // WARPS_PER_GROUP


@cute.jit
def scatter_pass(
    ctx: GemmContext,
    tile: GemmTile,
    part: ResultPart,
    first: Int32,
    row_bytes: cutlass.Constexpr[int],
    x: Int32,
    parts: cutlass.Constexpr[int],
):
    """A warp's eight rows of a pass that lies in the warpgroup's tile, rows of so many bytes in one part or two: a thread has four."""
    fours, half = part.warp * (WARP_ROWS // ROWS) + part.lane // parts, part.lane % parts
    own = first + fours * ROWS
    if (part.lane < WARP_ROWS // ROWS * parts) & (own < tile.valid_m):
        places = [select(own + i < tile.valid_m, tile.row + own + i, ctx.args.d_rows) for i in range(ROWS)]
        scatter_rows(ctx.maps.d, part.staging + (half * PASS_ROWS + fours * ROWS) * row_bytes, x + half * HALF_CHANNELS, places)
        commit_group()

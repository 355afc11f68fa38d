"""The decode warps of a GEMM, for tiles whose rows of A are the wgmma's rows; the loop is a block (blocks/sm90/decode.py).

waits     work_tile_full, per tile; codes_full and empty, per stage
signals   work_tile_empty, per tile; full and codes_empty, per warp and stage
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32

from ....hardware.packed_tile import PackedPart
from ...sm90.decode import decode_tile
from ...sm90.math_thread import MathThread
from ..context import GemmContext
from ..work_tile import next_tile


@cute.jit
def decode_weights(ctx: GemmContext, warp: Int32):
    """One of the four warps."""
    me = MathThread(Int32(0), warp, cute.arch.lane_idx())
    table, part = ctx.shared("decoded"), PackedPart(ctx.config.block_n)
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        stage = decode_tile(stage, me, table, ctx.k_blocks, part)
        tile, tiles = next_tile(tiles)

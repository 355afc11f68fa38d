"""The decode warps of SM90: packed weights into the stages, for tiles whose tokens are rows; the loop is a block (blocks/sm90/decode.py).

waits     work_tile_full, per tile; codes_full and empty, per stage
signals   work_tile_empty, per tile; full and codes_empty, per warp and stage
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.sm90.decode import Half, decode_tile
from ....blocks.sm90.math_thread import MathThread
from ....hardware.packed_tile import WHOLE_TILE
from ..context import Context
from ..tile_scheduler import next_tile

PHASE_AND_TOKENS = (0, 3)  # words of a work tile


@cute.jit
def decode_weights(ctx: Context, warp: Int32):
    """One of the four warps."""
    me = MathThread(Int32(0), warp, cute.arch.lane_idx())
    table = ctx.shared("decoded")
    tile, tiles = next_tile(ctx.first_tile, PHASE_AND_TOKENS)
    stage = ctx.first_stage
    while tile.valid():
        if cutlass.const_expr(ctx.config.halves_decoding):
            if tile.same_weights:
                stage = decode_tile(stage, me, table, ctx.k_blocks(tile), WHOLE_TILE, Half(ctx.cta_rank))
            else:
                stage = decode_tile(stage, me, table, ctx.k_blocks(tile))
        else:
            stage = decode_tile(stage, me, table, ctx.k_blocks(tile))
        tile, tiles = next_tile(tiles, PHASE_AND_TOKENS)

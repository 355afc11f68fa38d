"""The math warpgroups of a GEMM whose B is decoded by warps of its own, rows of A as the wgmma's rows: tile by tile the main loop
(blocks/sm90/decoded_share.py, decoded_rows.py) and the epilogue of FP8.

waits     work_tile_full, per tile; full, per stage
signals   work_tile_empty and empty, per warp, per tile and per stage
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.ring import Stage, TileQueue
from ....device.tma import wait_group_read
from ...sm90.decoded_rows import DecodedRows
from ...sm90.decoded_share import DecodedShare
from ...sm90.math_thread import MathThread
from .. import epilogue_rows
from ..context import GemmContext
from ..work_tile import GemmTile, next_tile


@cute.jit
def math(ctx: GemmContext, warp: Int32):
    """All math warps; `warp` counts within them and is uniform."""
    me = MathThread(warp >> 2, warp & 3, cute.arch.lane_idx())
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_read_stage
    while tile.valid():
        stage = ctx.of_tile(stage, tile)
        stage.wait_full()
        if cutlass.const_expr(ctx.config.is_tall):
            stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedRows.of(me))
        elif cutlass.const_expr(ctx.config.half_tiles):
            if ctx.is_half(tile):
                stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedShare.of(me, half=True))
            else:
                stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedShare.of(me, half=False))
        else:
            stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedShare.of(me, half=False))
    # What TMA still reads is this CTA's.
    wait_group_read(0)


@cute.jit
def compute(ctx: GemmContext, tile: GemmTile, tiles: TileQueue, stage: Stage, me: DecodedShare):
    """A warpgroup's share of a tile.  The ring's next stage; the next tile, and the place of the one after it."""
    sums, stage = me.multiply_tile(stage, None, ctx.k_blocks)
    following, tiles = next_tile(tiles)
    for share, of_share in me.parts(sums):
        epilogue_rows.finish_tile(ctx, tile, share, of_share)
    return stage, following, tiles

"""The math warpgroups of a GEMM that decodes, rows of A as the wgmma's columns: tile by tile the main loop (blocks/sm90/packed_share.py)
and the epilogue of FP8.

waits     work_tile_full, per tile; full, per stage
signals   work_tile_empty and empty, per warp, per tile and per stage
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.ring import TileQueue
from ....device.tma import wait_group_read
from ....hardware.packed_tile import PackedPart
from ...sm90.math_thread import MathThread
from ...sm90.packed_share import PackedBlock, PackedShare
from .. import epilogue_columns, exchange
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
        share = share_of(ctx, tile, me)
        sums, stage = share.multiply_tile(stage, None, ctx.k_blocks)
        following, tiles = next_tile(tiles)
        finish_tile(ctx, tile, share, sums, tiles)
        tile = following
    # What TMA still reads is this CTA's.
    wait_group_read(0)


def share_of(ctx: GemmContext, tile: GemmTile, me: MathThread) -> PackedShare:
    """What a thread's warpgroup has of a tile: two blocks of 64 rows of B, or one."""
    config, table, part = ctx.config, ctx.shared("decoded"), PackedPart(ctx.config.block_n)
    if config.tile.chunks(False) > 1:
        return PackedShare.of(me, config.block_m, table, part)
    block = me.group if config.warpgroups > 1 else part.block_of_group(tile.n_block)
    return PackedBlock(me.group, me.warp, me.lane, config.block_m, table, part, block != 0)


@cute.jit
def finish_tile(ctx: GemmContext, tile: GemmTile, me: PackedShare, sums: Any, after_next: TileQueue):
    """Sums to D, or to the CTA of the cluster that finishes them."""
    if cutlass.const_expr(ctx.config.split_k):
        exchange.finish_tile(ctx, tile, me, sums, after_next)
    else:
        epilogue_columns.finish_tile(ctx, tile, me, sums)

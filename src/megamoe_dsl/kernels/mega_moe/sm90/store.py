"""The store warp of SM90: it stores Linear1 tiles from SMEM into the Linear2 pool and signals that they are there, so that the math warps
need not wait for the stores.

waits     work_tile_full, per tile; store_full, per Linear1 tile
signals   work_tile_empty; store_empty when the tile has been read; fc2_arrival when it has been written (release)
"""

from __future__ import annotations

import cutlass.cute as cute

from ....device.mbarrier import arrive, wait
from ....device.ring import Ring
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....device.warp import sync_warp
from ....hardware.operand_tile import BLOCK_K
from ....layouts.arith import select
from ....schedule import FC1
from ..arrival import part_mark, signal_part
from ..tile_scheduler import next_tile
from .context import Sm90Context, is_half_tile
from .maps import Sm90Map


@cute.jit
def store_tiles(ctx: Sm90Context):
    """Lane 0 issues."""
    lane = cute.arch.lane_idx()
    tile, tiles = next_tile(ctx.first_tile)
    stores = Ring.start(1)
    while tile.valid():
        if tile.phase == FC1:
            wait(ctx.barrier("store_full"), stores.phase)
            stores = stores.next()
            if lane == 0:
                output = select(is_half_tile(ctx, tile), ctx.map(Sm90Map.FC1_OUTPUT_PART), ctx.map(Sm90Map.FC1_OUTPUT))
                store_tile(output, ctx.shared("cd"), tile.n_block * BLOCK_K, ctx.config.first_row(tile.pool_block))
                commit_group()
                wait_group_read(0)
                arrive(ctx.barrier("store_empty"))
                wait_group(0)
                signal_part(ctx, mark=part_mark(ctx, tile.n_block), arrival=ctx.at("fc2_arrival", tile.pool_block))
            sync_warp()
        tile, tiles = next_tile(tiles)

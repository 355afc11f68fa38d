"""The store warp of SM90: L1 tiles from SMEM into the L2 pool, and the news of it, off the math warps' path.

waits     counts, once; store_full, per L1 tile
signals   store_empty when the tile has been read; l2_arrival_mask when it has been written (release)
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import arrive, wait
from ....device.memory import reduce_or_u64
from ....device.ring import Ring
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....device.warp import sync_warp
from ....layouts.tile import BLOCK_K
from ....schedule import LINEAR1
from ..table import next_block, start_walk
from .context import Sm90Context
from .maps import Map


@cute.jit
def store_tiles(ctx: Sm90Context):
    """Lane 0 issues; the warp walks."""
    lane = cute.arch.lane_idx()
    blocks = start_walk(ctx, Int32(0), 1)
    stores = Ring.start(1)
    while blocks.valid():
        if blocks.phase == LINEAR1:
            wait(ctx.barrier("store_full"), stores.phase)
            stores = stores.next()
            if lane == 0:
                store_tile(ctx.map(Map.L1_OUTPUT), ctx.shared("cd"), blocks.n_block * BLOCK_K, blocks.pool_block * ctx.config.block_m)
                commit_group()
                wait_group_read(0)
                arrive(ctx.barrier("store_empty"))
                wait_group(0)
                bit = Int64(1) << Int64(blocks.n_block)
                reduce_or_u64(ctx.at("l2_arrival_mask", blocks.pool_block), bit, "release", "gpu")
            sync_warp()
        blocks = next_block(blocks)

"""The store warp of SM90: it stores Linear1 tiles from SMEM into the Linear2 pool and signals that they are there, so that the math warps
need not wait for the stores.  Where warps are few the scheduler warp does so: it has time until the next tile is asked for.

waits     work_tile_full, per tile, unless it deals them; store_full, per Linear1 tile
signals   work_tile_empty, likewise; store_empty when the tile has been read; fc2_arrival when it has been written (release)
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.mbarrier import arrive, wait
from ....device.ring import Ring
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....device.warp import sync_warp
from ....hardware.operand_tile import BLOCK_K
from ....layouts.arith import select
from ....schedule.fused_moe import FC1, Block
from ..context import Context, WorkTile, next_tile
from ..pool import part_mark, signal_part
from ..tile_scheduler import schedule_tiles
from .memory_plan import Sm90Map


@cute.jit
def store_tiles(ctx: Context):
    """Stores the tiles of Linear1, one after another, in the store warp."""
    lane = cute.arch.lane_idx()
    tile, tiles = next_tile(ctx.first_tile)
    stores = Ring.start(1)
    while tile.valid():
        stores = store_if_fc1(ctx, tile, stores, lane)
        tile, tiles = next_tile(tiles)


@cute.jit
def schedule_and_store(ctx: Context):
    """The scheduler warp that stores, too."""
    schedule_tiles(ctx, lambda ctx, block, stores: store_if_fc1(ctx, block, stores, cute.arch.lane_idx()))
    if cutlass.const_expr(ctx.config.cluster > 1):
        if ctx.cta_rank != 0:
            store_tiles(ctx)


@cute.jit
def store_if_fc1(ctx: Context, tile: WorkTile | Block, stores: Ring, lane: Int32):
    """A Linear1 tile, when the math warps have put it together: lane 0 issues.  Returns the staging buffer's place in its ring."""
    if tile.phase == FC1:
        wait(ctx.barrier("store_full"), stores.phase)
        stores = stores.next()
        if lane == 0:
            output = select(ctx.is_half(tile), ctx.map(Sm90Map.FC1_OUTPUT_PART), ctx.map(Sm90Map.FC1_OUTPUT))
            store_boxes(ctx, tile, output)
            commit_group()
            wait_group_read(0)
            arrive(ctx.barrier("store_empty"))
            wait_group(0)
            signal_part(ctx, mark=part_mark(ctx, tile.n_block), arrival=ctx.at("fc2_arrival", tile.pool_block))
        sync_warp()
    return stores


def store_boxes(ctx: Context, tile: WorkTile | Block, output: Any) -> None:
    """All of the tile, by map `output`, in boxes whose rows are 128 bytes."""
    plan = ctx.config.smem
    first, row = tile.n_block * (plan.fc1_boxes * BLOCK_K), ctx.config.first_row(tile.pool_block)
    for box in range(plan.fc1_boxes):
        store_tile(output, ctx.shared("cd") + plan.fc1_box(box), first + box * BLOCK_K, row)

"""Epilogue warps: every accumulator to its destination, then combine (article 4.5).

waits     work_tile_full and acc_full, per tile; Linear1 arrival count, per tile (acquires what dispatch wrote for the tile's tokens);
          counts, once
signals   work_tile_empty and acc_empty of the even CTA, per tile; see the two tile functions for the rest

Two warpgroups take alternate tiles, so each has one of the two accumulators to itself and they never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.rank_barrier import Group, rank_barrier
from ....blocks.sm100.tmem_plan import ACCUMULATORS
from ....blocks.trace import begin, detail_of, stamp
from ....device.mbarrier import LEADER, arrive_cluster, wait
from ....device.memory import fence_async_shared
from ....device.ring import Ring
from ....device.tcgen05 import fence_after_sync, fence_before_sync
from ....device.warp import named_barrier, sync_warp
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import FC1
from ..arrival import wait_tokens
from ..combine import combine_tokens
from ..context import Context
from ..layouts.tile import WARPS_PER_GROUP, NamedBarrier
from ..layouts.workspace import RankBarrier
from ..tile_scheduler import WorkTile, next_tile
from .epilogue_fc1 import finish_fc1
from .epilogue_fc2 import finish_fc2


@dataclass(frozen=True)
class Tile:
    """A tile as one epilogue warp sees it: its block, the accumulator's first TMEM column, warpgroup, warp within it, lane."""

    block: WorkTile
    column: Int32
    group: Int32
    warp: Int32
    lane: Int32

    def sync_group(self) -> None:
        """All four warps of the warpgroup."""
        named_barrier(self.group + NamedBarrier.EPILOGUE_GROUP, 32 * WARPS_PER_GROUP)


@cute.jit
def epilogue(ctx: Context, thread: Int32):
    """All epilogue warps; `thread` counts within them."""
    config = ctx.config
    begin(ctx, Role.EPILOGUE)
    finish_tiles(ctx, thread, finish_tile)

    # After the rank barrier the counts may be cleared, so this CTA's scheduler warp must have read them before.
    wait(ctx.barrier("counts"), Int32(0))
    rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, 32 * config.epilogue_warps, thread), RankBarrier.BEFORE_COMBINE)
    stamp(ctx, Activity.WAIT_RANKS)
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, config.num_threads - 128)
    stamp(ctx, Activity.WAIT_RESULTS)
    combine_tokens(ctx, thread >> 5, thread & 31)
    stamp(ctx, Activity.COMBINE)


@cute.jit
def finish_tile(ctx: Context, tile: Tile):
    """A tile of either linear."""
    if tile.block.phase == FC1:
        finish_fc1(ctx, tile)
    else:
        finish_fc2(ctx, tile)


@cute.jit
def finish_tiles(ctx: Context, thread: Int32, finish: Callable[..., Any]):
    """All tiles of an epilogue warp, each given to `finish`."""
    config = ctx.config
    groups = config.epilogue_warpgroups
    group, warp, lane = thread >> 7, (thread >> 5) & 3, thread & 31
    block, tiles = next_tile(ctx.first_tile.alternate(group, groups))
    stamp(ctx, Activity.WAIT_COUNTS)
    acc = Ring(ACCUMULATORS // groups, Int32(0), Int32(0))
    while block.valid():
        if cutlass.const_expr(ctx.operands_arrive):
            wait_tokens(ctx, block)
        index = acc.index + group
        wait(ctx.barrier("acc_full", index), acc.phase)
        fence_after_sync()
        stamp(ctx, Activity.WAIT_STAGE, detail_of(block))
        finish(ctx, Tile(block, index * config.block_m, group, warp, lane))
        fence_before_sync()
        sync_warp()
        if lane == 0:
            arrive_cluster(ctx.barrier("acc_empty", index) & LEADER)
        stamp(ctx, Activity.EPILOGUE, detail_of(block))
        acc = acc.next()
        block, tiles = next_tile(tiles)

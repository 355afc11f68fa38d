"""Tile scheduling at run time: a cluster fetches its next tiles when it is free, so that none waits idle for slower ones.

The scheduler warp of the cluster's first CTA fetches tile numbers, alone walks the sequence of tiles, and publishes a `WorkTile` in the
SMEM of each CTA; the last one has no tokens.  The next is fetched when all roles have read the one before it: the math warps begin a tile,
and the loaders need the next in its middle.

| role           | waits                                                           | signals                                        |
|---|---|---|
| schedule_tiles | expert_recv_count_sum and counts, once (table.py); work_tile_empty | counts, once; work_tile_full                |
| next_tile      | work_tile_full                                                  | work_tile_empty, per lane, when it has read it |
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.walk import Walk, advance_to_valid
from ....device.cluster import in_cta, store_async_v4
from ....device.mbarrier import arrive, arrive_expect_cluster, release, release_cluster, wait
from ....device.memory import atomic_add_u32, load_shared_v4, store_shared_v4
from ....device.ring import Ring
from ....device.warp import shuffle, sync_warp
from ..table import fill_table, start_walk
from .context import Sm90Context
from .smem_plan import WORK_TILES


@dataclass(frozen=True)
class WorkTile:
    """A block of the sequence (schedule.Block); the one that ends the walk has `valid_m` of 0 or less.

    same_tokens   whether the tiles of the cluster have one token block; if not, they have one weight block
    """

    phase: Int32
    expert: Int32
    n_block: Int32
    pool_block: Int32
    valid_m: Int32
    same_tokens: cutlass.Boolean

    @property
    def same_weights(self) -> cutlass.Boolean:
        return self.same_tokens == 0

    def valid(self) -> cutlass.Boolean:
        return self.valid_m > 0


@cute.jit
def schedule_tiles(ctx: Sm90Context):
    """The scheduler warp.  The first tile of a CTA has the CTA's number: no atomic before anything is under way."""
    fill_table(ctx)
    if ctx.cta_rank == 0:
        blocks, number = start_walk(ctx, Int32(0), 1), ctx.sm
        places = Ring.start(WORK_TILES)
        publish(ctx, blocks, places)
        while blocks.valid():
            places = places.next()
            wait(ctx.barrier("work_tile_empty", places.index), places.phase ^ 1)
            fetched = fetch_next(ctx)
            blocks, number = advance_to_valid(blocks.forward(fetched - number)), fetched
            publish(ctx, blocks, places)


@cute.jit
def fetch_next(ctx: Sm90Context) -> Int32:
    """The next number that no cluster has, of a tile for each CTA of the cluster."""
    taken = Int32(0)
    if cute.arch.lane_idx() == 0:
        taken = atomic_add_u32(ctx.at("tile_counter"), ctx.config.cluster)
    return shuffle(taken, 0) + ctx.config.num_sms


@cute.jit
def publish(ctx: Sm90Context, blocks: Walk, places: Ring):
    """A block for each CTA of the cluster; they are of one expert and phase."""
    mine = [blocks.forward(cta).block() for cta in range(ctx.config.cluster)]
    same_tokens = Int32(mine[0].pool_block == mine[-1].pool_block)
    work_tile, full = ctx.shared("work_tiles", places.index), ctx.barrier("work_tile_full", places.index)
    if cute.arch.lane_idx() == 0:
        for cta in cutlass.range_constexpr(ctx.config.cluster):
            block = mine[cta]
            words = (block.expert * 4 + same_tokens * 2 + block.phase, block.n_block, block.pool_block, block.valid_m)
            if cutlass.const_expr(cta == 0):
                store_shared_v4(work_tile, words)
                arrive(full)
            else:
                theirs = in_cta(full, cta)
                arrive_expect_cluster(theirs, 16)
                store_async_v4(in_cta(work_tile, cta), words, theirs)
    sync_warp()


@cute.jit
def next_tile(ctx: Sm90Context, places: Ring) -> tuple[WorkTile, Ring]:
    """A warp that works on tiles: its next one, and the place of the one after it."""
    wait(ctx.barrier("work_tile_full", places.index), places.phase)
    which, n_block, pool_block, valid_m = (Int32(word) for word in load_shared_v4(ctx.shared("work_tiles", places.index)))
    # Every lane for its own reads: no order between lanes is needed, and tools that track threads see it.
    empty = ctx.barrier("work_tile_empty", places.index)
    if cutlass.const_expr(ctx.config.cluster > 1):
        release_cluster(in_cta(empty, 0), which)
    else:
        release(empty, which)
    sync_warp()  # wgmma and elections need the warp together
    return WorkTile(which & 1, which >> 2, n_block, pool_block, valid_m, (which & 2) != 0), places.next()

"""Tile scheduling at run time: a cluster fetches its next tiles when it is free, so that none waits idle for slower ones.

Only the scheduler warp of the cluster's first CTA fetches tile numbers and walks the sequence of tiles.  It publishes each tile as a
`WorkTile` in the SMEM of every CTA of the cluster; one without tokens says that there are no more.  It fetches a tile when all roles have
read the one before, that is when the math warps begin with that one; the loaders need the next tile only in the middle of it.

| role           | waits                                                           | signals                                        |
|---|---|---|
| schedule_tiles | expert_recv_count_sum and counts, once (table.py); work_tile_empty | counts, once; work_tile_full                |
| next_tile      | work_tile_full                                                  | work_tile_empty, per lane, when it has read it |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.walk import Walk, advance_to_valid
from ....device.tile_queue import TileQueue, fetch_numbers, publish, read_tile
from ..table import TracedOrder, TracedRingOrder, fill_table, start_walk
from .context import Sm90Context


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
        """Whether the tiles of the cluster have one weight block."""
        return self.same_tokens == 0

    def valid(self) -> cutlass.Boolean:
        """Whether it is a tile, not the end of the walk."""
        return self.valid_m > 0


@cute.jit
def schedule_tiles(ctx: Sm90Context):
    """The scheduler warp.  The first tile of a CTA is the one with the CTA's own number, so that work starts without an atomic."""
    fill_table(ctx)
    if ctx.cta_rank == 0:
        publish_tiles(ctx, start_walk(ctx, Int32(0), 1, TracedRingOrder if ctx.config.ring_blocks else TracedOrder))


@cute.jit
def publish_tiles(ctx: Sm90Context, blocks: Walk):
    """The tiles of a cluster, from its first block on."""
    number = ctx.sm
    queue = ctx.first_tile
    publish_blocks(ctx, blocks, queue)
    while blocks.valid():
        queue = queue.next()
        queue.wait_empty()
        # The counter counts from 0; the numbers below num_sms are the first tiles of the CTAs.
        fetched = fetch_numbers(ctx.at("tile_counter"), ctx.config.cluster) + ctx.config.num_sms
        blocks, number = advance_to_valid(blocks.forward(fetched - number)), fetched
        publish_blocks(ctx, blocks, queue)


@cute.jit
def publish_blocks(ctx: Sm90Context, blocks: Walk, queue: TileQueue):
    """A block for each CTA of the cluster; they are of one expert and phase."""
    mine = [blocks.forward(cta).block() for cta in range(ctx.config.cluster)]
    same_tokens = Int32(mine[0].pool_block == mine[-1].pool_block)

    def words(cta: int) -> tuple[Any, ...]:
        block = mine[cta]
        return (block.expert * 4 + same_tokens * 2 + block.phase, block.n_block, block.pool_block, block.valid_m)

    publish(queue, words)


@cute.jit
def next_tile(queue: TileQueue, used: cutlass.Constexpr[tuple[int, ...]] = (0,)) -> tuple[WorkTile, TileQueue]:
    """A warp that works on tiles: its next one, and the place of the one after it.  `used` as in `read_tile`."""
    (which, n_block, pool_block, valid_m), following = read_tile(queue, used)
    return WorkTile(which & 1, which >> 2, n_block, pool_block, valid_m, (which & 2) != 0), following

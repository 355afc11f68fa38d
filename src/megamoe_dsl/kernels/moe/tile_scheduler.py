"""Tile scheduling at run time: a cluster fetches its next tiles when it is free, so that none waits idle for slower ones.

Only the scheduler warp of the cluster's first CTA fetches tile numbers and walks the sequence of tiles.  It publishes each tile as a
`WorkTile` in the SMEM of every CTA of the cluster; one without tokens says that there are no more.  It fetches a tile when a place of the
queue is free, that is when all roles have read the tile that was there.

A walk over the blocks needs, per local expert, the tokens received and the first pool block.  The scheduler warp of each CTA waits for the
counts (watchdog; it acquires what every rank's dispatch wrote before), scans them and publishes the table in SMEM once; the article's
kernel polls and scans in every warp.

On SM90 each CTA of a cluster has a tile of its own, and the queue has one place: the math warps read a tile when they begin with it, and
the loaders need the next one only in the middle of it.  On SM100 a CTA pair has one tile.  The MMA warp is up to two tiles ahead of the
epilogues, so the queue has two places; where two epilogue warpgroups take alternate tiles, each reads one of the places only.

| role           | waits                                                           | signals                                        |
|---|---|---|
| schedule_tiles | expert_recv_count_sum and counts, once; work_tile_empty | counts, once; work_tile_full                |
| next_tile      | work_tile_full                                                  | work_tile_empty, per lane, when it has read it |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blocks.walk import Walk, advance_to_valid, first_number
from ...device.mbarrier import arrive, wait
from ...device.memory import load_shared_u32, load_u64, store_shared_v2
from ...device.ring import Ring, TileQueue, fetch_numbers, publish, read_tile
from ...device.sync import HighWordGrewBy, spin
from ...device.warp import inclusive_sum, shuffle, sync_warp
from ...layouts.arith import ceil_div, div
from ...schedule.fused_moe import Block, FusedMoeOrder, RingOrder, mma_tokens
from ...schedule.scheduler import Order
from .context import Context
from .layouts.waits import Wait


@dataclass(frozen=True)
class SharedTable:
    """An expert table in SMEM: (tokens, first pool block) per local expert, then an entry with no tokens."""

    address: Int32

    def tokens(self, expert: Any) -> Any:
        return load_shared_u32(self.address + expert * 8)

    def first_block(self, expert: Any) -> Any:
        return load_shared_u32(self.address + expert * 8 + 4)


@dataclass(frozen=True)
class TracedOrder(FusedMoeOrder):
    """The order in a kernel: the DSL is told which fields are compile-time."""

    config: cutlass.Constexpr[Any]
    table: SharedTable


@dataclass(frozen=True)
class TracedRingOrder(RingOrder):
    """The same on a ring."""

    config: cutlass.Constexpr[Any]
    table: SharedTable


@cute.jit
def fill_table(ctx: Context):
    """The scheduler warp: lane l handles experts l, l + 32, ..."""
    local = ctx.config.problem.experts_per_rank
    lane = cute.arch.lane_idx()
    first = Int32(0)  # pool blocks of all experts before this round of 32
    for base in cutlass.range_constexpr(0, local + 1, 32):
        expert = lane + base
        tokens = Int32(0)
        if expert < local:
            seen = load_u64(ctx.at("expert_counts_seen", expert))
            counter = HighWordGrewBy(ctx.at("expert_recv_count_sum", expert), seen, Int32(ctx.config.problem.num_ranks))
            tokens = Int32(spin(counter, ctx.watchdog, Wait.COUNTS, expert))
        sync_warp()
        blocks = ceil_div(tokens, ctx.config.block_m)
        upto = inclusive_sum(blocks)
        if expert <= local:
            store_shared_v2(ctx.shared("expert_table", expert), tokens, first + upto - blocks)
        first = first + shuffle(upto, 31)
    # Every lane arrives, after it has written its own entries.  Then no order between lanes is needed, and tools that follow single threads
    # (compute-sanitizer) see that every entry is written before it is read.
    arrive(ctx.barrier("counts"))


@cute.jit
def start_walk(ctx: Context, kind: Callable[..., Order] = TracedOrder) -> Walk:
    """Waits for the table.  Returns a walk that begins with this cluster's first fetch.  `kind` is the order of blocks, made of the
    configuration and the table."""
    config = ctx.config
    wait(ctx.barrier("counts"), Int32(0))
    number = div(ctx.sm, config.cluster) * config.blocks_per_fetch
    order = kind(config, SharedTable(ctx.shared("expert_table")))
    return advance_to_valid(Walk.start(order, number, config.num_clusters * config.blocks_per_fetch, Int32))


Finish = Callable[[Context, Block, Ring], Ring]
"""Of a tile, with the place in a ring that belongs to the warp; returns that of the next one."""


@dataclass(frozen=True)
class WorkTile:
    """A block of the sequence (schedule.Block); the one that ends the walk has `valid_m` of 0 or less.

    same_tokens   whether the tiles of the cluster have one token block; if not, they have one weight block; of no use to a CTA pair
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

    @property
    def mma_n(self) -> Int32:
        """Tokens the MMA of a CTA pair covers."""
        return mma_tokens(self.valid_m)

    def valid(self) -> cutlass.Boolean:
        return self.valid_m > 0


@cute.jit
def schedule_tiles(ctx: Context, finish: cutlass.Constexpr[Finish | None] = None):
    """The scheduler warp.  The first tiles of a cluster are those with its own numbers, so that work starts without an atomic.

    finish: what the warp does with each tile besides, once the tile after it has been published."""
    fill_table(ctx)
    if ctx.cta_rank == 0:
        publish_tiles(ctx, start_walk(ctx, TracedRingOrder if ctx.config.ring_blocks else TracedOrder), finish)


@cute.jit
def publish_tiles(ctx: Context, blocks: Walk, finish: cutlass.Constexpr[Finish | None] = None):
    """The tiles of a cluster, from its first block on."""
    config, number = ctx.config, first_number(ctx.sm, ctx.config)
    queue, finished = ctx.first_tile, Ring.start(1)
    publish_blocks(ctx, blocks, queue)
    while blocks.valid():
        before = None if finish is None else blocks.block()
        queue = queue.next()
        queue.wait_empty()
        # The counter counts from 0; the numbers before those are the first tiles of the clusters.
        first = config.num_clusters * config.blocks_per_fetch
        fetched = fetch_numbers(ctx.at("tile_counter"), config.blocks_per_fetch) + first
        blocks, number = advance_to_valid(blocks.forward(fetched - number)), fetched
        publish_blocks(ctx, blocks, queue)
        if cutlass.const_expr(finish is not None):
            finished = finish(ctx, before, finished)  # type: ignore[misc, arg-type]
    # Warpgroups that read alternate places each need an end (read_ends).
    for _ in cutlass.range_constexpr(config.alternating_groups - 1):
        queue = queue.next()
        queue.wait_empty()
        publish_blocks(ctx, blocks, queue)


@cute.jit
def publish_blocks(ctx: Context, blocks: Walk, queue: TileQueue):
    """A block for each CTA of the cluster, or one for a CTA pair; those of a cluster are of one expert and phase."""
    mine = [blocks.forward(i).block() for i in range(ctx.config.blocks_per_fetch)]
    same_tokens = Int32(mine[0].pool_block == mine[-1].pool_block)

    def words(cta: int) -> tuple[Any, ...]:
        block = mine[min(cta, len(mine) - 1)]
        return (block.expert * 4 + same_tokens * 2 + block.phase, block.n_block, block.pool_block, block.valid_m)

    publish(queue, words)


@cute.jit
def next_tile(queue: TileQueue, used: cutlass.Constexpr[tuple[int, ...]] = (0,)) -> tuple[WorkTile, TileQueue]:
    """A warp that works on tiles: its next one, and the place of the one after it.  `used` as in `read_tile`."""
    (which, n_block, pool_block, valid_m), following = read_tile(queue, used)
    return WorkTile(which & 1, which >> 2, n_block, pool_block, valid_m, (which & 2) != 0), following


@cute.jit
def read_ends(ctx: Context, queue: TileQueue):
    """A warp that reads every tile and has read the first end: the ends of the other warpgroups, so that each place is read by all."""
    for _ in cutlass.range_constexpr(ctx.config.alternating_groups - 1):
        _, queue = next_tile(queue)

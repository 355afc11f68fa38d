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
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blocks.tiles import SharedTable, Walk, advance_to_valid, fill_shared_table, first_number, traced
from ...device.mbarrier import arrive, wait
from ...device.memory import load_u64
from ...device.ring import Ring, TileQueue, fetch_numbers, publish
from ...device.sync import HighWordGrewBy, spin
from ...device.warp import sync_warp
from ...layouts.arith import ceil_div, div
from ...schedule.fused_moe import Block
from ...schedule.scheduler import Order
from .context import Context
from .layouts.smem_plan import Wait


@cute.jit
def received(ctx: Context, expert: Int32):
    """Tokens of an expert in this launch, once every rank has reported; 0 past the last expert."""
    tokens = Int32(0)
    if expert < ctx.config.problem.experts_per_rank:
        seen = load_u64(ctx.at("expert_counts_seen", expert))
        counter = HighWordGrewBy(ctx.at("expert_recv_count_sum", expert), seen, Int32(ctx.config.problem.num_ranks))
        tokens = Int32(spin(counter, ctx.watchdog, Wait.COUNTS, expert))
    sync_warp()
    return tokens


@cute.jit
def fill_table(ctx: Context):
    """The scheduler warp says how many tokens each expert has, and where."""
    entry, local, block_m = partial(ctx.shared, "expert_table"), ctx.config.problem.experts_per_rank, ctx.config.block_m
    fill_shared_table(entry, local, partial(received, ctx), lambda tokens: ceil_div(tokens, block_m))
    # Every lane arrives, after it has written its own entries.  Then no order between lanes is needed, and tools that follow single threads
    # (compute-sanitizer) see that every entry is written before it is read.
    arrive(ctx.barrier("counts"))


@cute.jit
def start_walk(ctx: Context, kind: Callable[..., Order]) -> Walk:
    """Waits for the table.  Returns a walk that begins with this cluster's first fetch.  `kind` is the order of blocks, made of the
    configuration and the table."""
    config = ctx.config
    wait(ctx.barrier("counts"), Int32(0))
    number = div(ctx.sm, config.cluster) * config.blocks_per_fetch
    order = kind(config, SharedTable(ctx.shared("expert_table")))
    return advance_to_valid(Walk.start(order, number, config.num_clusters * config.blocks_per_fetch, Int32))


Finish = Callable[[Context, Block, Ring], Ring]
"""Of a tile, with the place in a ring that belongs to the warp; returns that of the next one."""


@cute.jit
def schedule_tiles(ctx: Context, finish: cutlass.Constexpr[Finish | None] = None, order: cutlass.Constexpr[Any] = None):
    """The scheduler warp.  The first tiles of a cluster are those with its own numbers, so that work starts without an atomic.

    finish: what the warp does with each tile besides, once the tile after it has been published; order: if not the configuration's."""
    fill_table(ctx)
    if ctx.cta_rank == 0:
        publish_tiles(ctx, start_walk(ctx, traced(ctx.config.order) if order is None else order), finish)


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

"""Tiles dealt at run time: a cluster takes the next numbers of the sequence when it is free, so that none waits idle for slower ones.

The scheduler warp of the cluster's first CTA draws the numbers, alone walks the sequence, and publishes the tiles as tickets in SMEM, one
in each CTA; the last ticket has no tile.  A ticket is drawn when all roles have read the one before it: the math warps begin a tile, and
the loaders need the next in its middle.

| role       | waits                                                               | signals                                     |
|---|---|---|
| deal_tiles | expert_recv_count_sum and counts, once (table.py); ticket_empty     | counts, once; ticket_full                   |
| next_tile  | ticket_full                                                         | ticket_empty, per lane, when it has read it |
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.cluster import in_cta, store_async_v4
from ....device.mbarrier import arrive, arrive_expect_cluster, release, release_cluster, wait
from ....device.memory import atomic_add_u32, load_shared_v4, store_shared_v4
from ....device.ring import Ring
from ....device.warp import shuffle, sync_warp
from ..table import Walk, fill_table, settle, start_walk
from .context import Sm90Context
from .smem_plan import TICKETS


@dataclass(frozen=True)
class Tile:
    """A block of the sequence (schedule.Block); the ticket that ends the walk has `valid_m` of 0 or less.

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
def deal_tiles(ctx: Sm90Context):
    """The scheduler warp.  The first tile of a CTA has the CTA's number: no atomic before anything is under way."""
    fill_table(ctx)
    if ctx.cta_rank == 0:
        blocks, number = start_walk(ctx, Int32(0), 1), ctx.sm
        tickets = Ring.start(TICKETS)
        publish(ctx, blocks, tickets)
        while blocks.valid():
            tickets = tickets.next()
            wait(ctx.barrier("ticket_empty", tickets.index), tickets.phase ^ 1)
            drawn = draw(ctx)
            blocks, number = settle(blocks.forward(drawn - number)), drawn
            publish(ctx, blocks, tickets)


@cute.jit
def draw(ctx: Sm90Context) -> Int32:
    """The next number that nobody has taken, of a tile for each CTA of the cluster."""
    taken = Int32(0)
    if cute.arch.lane_idx() == 0:
        taken = atomic_add_u32(ctx.at("blocks_taken"), ctx.config.cluster)
    return shuffle(taken, 0) + ctx.config.num_sms


@cute.jit
def publish(ctx: Sm90Context, blocks: Walk, tickets: Ring):
    """A block for each CTA of the cluster; they are of one expert and phase."""
    mine = [blocks.forward(cta).block() for cta in range(ctx.config.cluster)]
    same_tokens = Int32(mine[0].pool_block == mine[-1].pool_block)
    ticket, full = ctx.shared("tickets", tickets.index), ctx.barrier("ticket_full", tickets.index)
    if cute.arch.lane_idx() == 0:
        for cta in cutlass.range_constexpr(ctx.config.cluster):
            block = mine[cta]
            words = (block.expert * 4 + same_tokens * 2 + block.phase, block.n_block, block.pool_block, block.valid_m)
            if cutlass.const_expr(cta == 0):
                store_shared_v4(ticket, words)
                arrive(full)
            else:
                theirs = in_cta(full, cta)
                arrive_expect_cluster(theirs, 16)
                store_async_v4(in_cta(ticket, cta), words, theirs)
    sync_warp()


@cute.jit
def next_tile(ctx: Sm90Context, tickets: Ring) -> tuple[Tile, Ring]:
    """A warp that works on tiles: its next one, and the place of the ticket after it."""
    wait(ctx.barrier("ticket_full", tickets.index), tickets.phase)
    which, n_block, pool_block, valid_m = (Int32(word) for word in load_shared_v4(ctx.shared("tickets", tickets.index)))
    # Every lane for its own reads: no order between lanes is needed, and tools that track threads see it.
    empty = ctx.barrier("ticket_empty", tickets.index)
    if cutlass.const_expr(ctx.config.cluster > 1):
        release_cluster(in_cta(empty, 0), which)
    else:
        release(empty, which)
    sync_warp()  # wgmma and elections need the warp together
    return Tile(which & 1, which >> 2, n_block, pool_block, valid_m, (which & 2) != 0), tickets.next()

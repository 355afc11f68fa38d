"""The dispatch warps, in three parts: exchange counts (exchange_counts.py), pull tokens (pull.py), clean the workspace.

waits     counts, once; DISPATCH_EPILOGUE: all ranks have passed BEFORE_COMBINE
signals   DISPATCH_EPILOGUE: the SMEM of dispatch is free for combine
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.rank_barrier import Group, next_epoch
from ...blocks.trace import begin, stamp
from ...device.mbarrier import wait
from ...device.memory import fence_async_shared, load_u64, reduce_add_u32, store_u32, store_u64
from ...device.warp import named_barrier
from ...layouts.arith import ceil_div
from ...layouts.records import Activity, Role
from .context import Context
from .exchange_counts import exchange_counts
from .layouts.tile import NamedBarrier
from .pull import pull_tokens
from .table import SharedTable


@cute.jit
def dispatch(ctx: Context, thread: Int32):
    """Runs one thread of the dispatch warps from counts to cleaning."""
    group = Group(NamedBarrier.DISPATCH, 32 * ctx.config.dispatch_warps, thread)
    begin(ctx, Role.DISPATCH)
    exchange_counts(ctx, group)
    stamp(ctx, Activity.COUNT)
    # Counts from a rank say two things.  Its indices are here, because it sent them first.  And it has started this launch: its inputs are
    # the new ones, and it no longer reads the combine rows of the launch before.
    wait(ctx.barrier("counts"), Int32(0))
    stamp(ctx, Activity.WAIT_COUNTS)
    pull_tokens(ctx, thread >> 5)
    stamp(ctx, Activity.PULL)
    # Combine's TMA loads will overwrite the SMEM that dispatch has used: those are writes through the async proxy.
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, ctx.config.dispatch_epilogue_threads)
    stamp(ctx, Activity.WAIT_RESULTS)
    clean_workspace(ctx, group)
    stamp(ctx, Activity.CLEAN)


@cute.jit
def clean_workspace(ctx: Context, group: Group):
    """Clears the workspace for the next launch, and adds to the expert statistics, while other warps combine (article 4.1, cleanup): after
    BEFORE_COMBINE nobody reads what is cleared here, and no other rank writes it.

    SM 0 clears the send counts and the tile counter, and increments the launch epoch.  The other CTAs clear what belongs to the local
    experts, one expert at a time."""
    problem = ctx.config.problem
    if ctx.sm == 0:
        for expert in cutlass.range(group.thread, problem.num_experts, group.size, unroll=1):
            store_u32(ctx.at("expert_send_count", expert), 0)
        if group.thread == 0:
            # No CTA fetches another number: the math warps of all CTAs are past BEFORE_COMBINE, and they got there only after they
            # had been told that no tile is left.
            store_u32(ctx.at("tile_counter"), 0)
            store_u32(ctx.at("launch_epoch"), next_epoch(ctx))
    else:
        for expert in cutlass.range(ctx.sm - 1, problem.experts_per_rank, ctx.config.num_sms - 1, unroll=1):
            clean_expert(ctx, group, expert)


@cute.jit
def clean_expert(ctx: Context, group: Group, expert: Int32):
    """One CTA, one local expert: adds the launch's tokens to expert_counts_seen and to the statistics, and clears the arrival counters of
    the expert's pool blocks."""
    table = SharedTable(ctx.shared("expert_table"))
    tokens, pool_block = table.tokens(expert), table.first_block(expert)
    if group.thread == 0:
        # Adds what this launch received.  A copy of expert_recv_count_sum would be wrong: ranks that are already in their next launch may
        # have added to it.
        seen = ctx.at("expert_counts_seen", expert)
        store_u64(seen, load_u64(seen) + (Int64(ctx.config.problem.num_ranks << 32) + Int64(tokens)))
        if ctx.args.stats != 0:
            reduce_add_u32(ctx.args.stats + Int64(expert) * 4, tokens, "relaxed", "gpu")
    for block in cutlass.range(group.thread, ceil_div(tokens, ctx.config.block_m), group.size, unroll=1):
        store_u32(ctx.at("fc1_arrival_count", pool_block + block), 0)
        store_u64(ctx.at("fc2_arrival", pool_block + block), Int64(0))
        if cutlass.const_expr(ctx.config.ring_blocks > 0):
            store_u32(ctx.at("fc2_read_count", pool_block + block), 0)

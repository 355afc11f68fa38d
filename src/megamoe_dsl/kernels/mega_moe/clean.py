"""Dispatch warps, third part: the workspace is zero again before any rank starts its next launch; expert statistics (article 4.1, cleanup).

Runs beside combine.  waits: all CTAs at AFTER_CLEAN, then all ranks, on SM 0 only; signals: rank barrier AFTER_CLEAN, launch_epoch.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import reduce_add_u32, store_relaxed_u64, store_u32, store_u64
from ...layouts.arith import ceil_div
from ...layouts.workspace import RankBarrier
from .context import Context
from .rank_barrier import Group, arrive, await_ranks, collect, next_epoch, signal
from .table import SharedTable


@cute.jit
def clean_workspace(ctx: Context, group: Group):
    """SM 0 clears the send counts and the block counter, the others what belongs to the local experts."""
    problem = ctx.config.problem
    if ctx.sm == 0:
        for expert in cutlass.range(group.thread, problem.num_experts, group.size, unroll=1):
            store_u32(ctx.at("expert_send_count", expert), 0)
        if group.thread == 0:
            # Every CTA has drawn its last number: its math warps, which have the block or know that there is none, are past BEFORE_COMBINE.
            store_u32(ctx.at("blocks_taken"), 0)
    else:
        for expert in cutlass.range(ctx.sm - 1, problem.experts_per_rank, ctx.config.num_sms - 1, unroll=1):
            clean_expert(ctx, group, expert)
    arrive(ctx, group, RankBarrier.AFTER_CLEAN)
    if ctx.sm == 0:
        collect(ctx, group, RankBarrier.AFTER_CLEAN)
        signal(ctx, group, RankBarrier.AFTER_CLEAN)
        await_ranks(ctx, group, RankBarrier.AFTER_CLEAN)
        if group.thread == 0:
            store_u32(ctx.at("launch_epoch"), next_epoch(ctx))


@cute.jit
def clean_expert(ctx: Context, group: Group, expert: Int32):
    table = SharedTable(ctx.shared("expert_table"))
    tokens, pool_block = table.tokens(expert), table.pool_block(expert)
    if group.thread == 0:
        # Strong, as the additions are: nothing but the value that the scheduler warp saw puts this after them.
        store_relaxed_u64(ctx.at("expert_recv_count_sum", expert), Int64(0), "sys")
        if ctx.args.stats != 0:
            reduce_add_u32(ctx.args.stats + Int64(expert) * 4, tokens, "relaxed", "gpu")
    if group.thread < ctx.config.problem.num_ranks:
        store_u64(ctx.at("expert_recv_count", group.thread, expert), Int64(0))
    for block in cutlass.range(group.thread, ceil_div(tokens, ctx.config.block_m), group.size, unroll=1):
        store_u32(ctx.at("l1_arrival_count", pool_block + block), 0)
        store_u64(ctx.at("l2_arrival_mask", pool_block + block), Int64(0))

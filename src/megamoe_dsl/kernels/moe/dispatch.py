"""The dispatch warps, in three parts.  They tell every rank how many of this rank's tokens its experts get, and which (article 4.1.1 to
4.1.5); pull tokens (pool.py); and clean the workspace.

waits     all CTAs at BEFORE_PULL, on SM 0 only (watchdog); counts, once; DISPATCH_EPILOGUE: all ranks have passed BEFORE_COMBINE
signals   expert_recv_count_sum of every rank's experts (release, after expert_recv_count and src_token_topk_idx)
          DISPATCH_EPILOGUE: the SMEM of dispatch is free for combine

All threads of these warps stride over the flat [token, slot] list.  A token's slot among its expert's tokens comes from two levels of
counters: one in SMEM within the CTA, and one per expert in the workspace, by which CTAs reserve slots.  A short list is left to SM 0 alone,
which then needs only its SMEM counters: that takes less time than a barrier over all CTAs.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint64

from ...blocks.rank_barrier import Group, arrive, arrive_no_wait, collect, next_epoch
from ...blocks.tiles import SharedTable
from ...device.mbarrier import wait
from ...device.memory import (
    atomic_add_shared,
    atomic_add_u32,
    fence_async_shared,
    fence_sys,
    load_constant_u64,
    load_shared_u32,
    load_u32,
    load_u64,
    reduce_add_shared,
    reduce_add_u32,
    reduce_add_u64,
    store_shared_u32,
    store_u32,
    store_u64,
)
from ...device.stamps import begin, stamp
from ...device.warp import named_barrier
from ...layouts.arith import ceil_div, div, minimum, select
from ...layouts.records import Activity, Role
from .context import Context
from .layouts.smem_plan import DISPATCH_WARPS, ONE_REPORT, NamedBarrier, RankBarrier
from .pool import pull_tokens


@cute.jit
def dispatch(ctx: Context, thread: Int32):
    """Runs one thread of the dispatch warps from counts to cleaning."""
    group = Group(NamedBarrier.DISPATCH, 32 * ctx.config.warps.dispatch, thread)
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


THREADS = 32 * DISPATCH_WARPS
ALONE = 3 * THREADS  # slots: 64 tokens with six experts each


@cute.jit
def exchange_counts(ctx: Context, group: Group):
    """The whole exchange, for all CTAs."""
    if num_slots(ctx) <= ALONE:
        if ctx.sm == 0:
            exchange_counts_alone(ctx, group)
        arrive_no_wait(ctx, group, RankBarrier.BEFORE_PULL)
    else:
        exchange_counts_together(ctx, group)


@cute.jit
def exchange_counts_alone(ctx: Context, group: Group):
    """The exchange of at most `ALONE` slots, by SM 0 without the other CTAs."""
    clear_counts(ctx, group)
    places = [group.thread + first for first in range(0, ALONE, group.size)]
    # All loads are issued before the first is used, so that their latencies overlap.
    experts = [expert_if_any(ctx, i) for i in places]
    for i, expert in zip(places, experts, strict=True):
        if expert >= 0:
            send_index(ctx, expert, atomic_add_shared(ctx.shared("expert_count", expert), 1), i)
    group.sync()
    send_counts(ctx, group, [load_shared_u32(ctx.shared("expert_count", expert)) for expert in own_experts(ctx, group, last=True)])


@cute.jit
def exchange_counts_together(ctx: Context, group: Group):
    """All CTAs count and send indices; then SM 0 sends the rank's totals."""
    count_tokens(ctx, group)
    reserve_slots(ctx, group)
    send_indices(ctx, group)
    arrive(ctx, group, RankBarrier.BEFORE_PULL)
    if ctx.sm == 0:
        collect(ctx, group, RankBarrier.BEFORE_PULL, next_epoch(ctx))
        send_counts(ctx, group, [load_u32(ctx.at("expert_send_count", expert)) for expert in own_experts(ctx, group, last=True)])


def num_slots(ctx: Context) -> Any:
    """Length of the flat [token, slot] list."""
    return ctx.args.num_tokens * ctx.config.problem.topk


def own_experts(ctx: Context, group: Group, last: bool = False) -> list[Any]:
    """The experts of a thread: every so-many-th.  Numbers beyond the last expert are for the caller to skip; with `last` they are the
    last expert's, so that they can be used as addresses."""
    experts = ctx.config.problem.num_experts
    numbers = [group.thread + first for first in range(0, experts, group.size)]
    return [minimum(number, experts - 1) for number in numbers] if last else numbers


@cute.jit
def clear_counts(ctx: Context, group: Group):
    """Sets this CTA's counters in SMEM to zero."""
    for expert in own_experts(ctx, group):
        if expert < ctx.config.problem.num_experts:
            store_shared_u32(ctx.shared("expert_count", expert), 0)
    group.sync()


@cute.jit
def count_tokens(ctx: Context, group: Group):
    """Counts, in SMEM, the tokens of each expert in this CTA's share of the list."""
    clear_counts(ctx, group)
    for i in cutlass.range(ctx.sm * group.size + group.thread, num_slots(ctx), ctx.config.num_sms * group.size, unroll=1):
        expert = expert_of(ctx, 0, i)
        if expert >= 0:
            reduce_add_shared(ctx.shared("expert_count", expert), 1)
    group.sync()


@cute.jit
def expert_if_any(ctx: Context, token_topk: Int32) -> Int32:
    """Expert of a slot of the list; negative for a masked slot and for one beyond the end."""
    expert = Int32(MASKED)
    if token_topk < num_slots(ctx):
        expert = expert_of(ctx, 0, token_topk)
    return expert


@cute.jit
def reserve_slots(ctx: Context, group: Group):
    """Replaces each count in SMEM by the first slot that this CTA's tokens take among the rank's tokens for that expert.  All atomics are
    issued before the first result is used, so that their latencies overlap."""
    experts = own_experts(ctx, group)
    firsts = [reserve_slots_for(ctx, expert) for expert in experts]
    for expert, first in zip(experts, firsts, strict=True):
        if expert < ctx.config.problem.num_experts:
            store_shared_u32(ctx.shared("expert_count", expert), first)
    group.sync()


@cute.jit
def reserve_slots_for(ctx: Context, expert: Int32) -> Int32:
    """The first of the slots reserved for this CTA's tokens of an expert; none for an expert without tokens of this CTA."""
    first = Int32(0)
    if expert < ctx.config.problem.num_experts:
        tokens = load_shared_u32(ctx.shared("expert_count", expert))
        if tokens > 0:
            first = atomic_add_u32(ctx.at("expert_send_count", expert), tokens)
    return first


@cute.jit
def send_indices(ctx: Context, group: Group):
    """Writes, into the rank of each expert, the index of every token that this rank will have to pull."""
    for i in cutlass.range(ctx.sm * group.size + group.thread, num_slots(ctx), ctx.config.num_sms * group.size, unroll=1):
        expert = expert_of(ctx, 0, i)
        if expert >= 0:
            send_index(ctx, expert, atomic_add_shared(ctx.shared("expert_count", expert), 1), i)


def send_index(ctx: Context, expert: Any, slot: Any, token_topk: Any) -> None:
    """Writes one index; `slot` is the token's number among this rank's tokens for the expert."""
    owner = div(expert, ctx.config.problem.experts_per_rank)
    local = expert - owner * ctx.config.problem.experts_per_rank
    store_u32(ctx.at_peer(ctx.peer(owner), "src_token_topk_idx", local, ctx.args.rank, slot), token_topk)


@cute.jit
def send_counts(ctx: Context, group: Group, totals: list[Any]):
    """SM 0 writes this rank's totals of the thread's experts into the ranks that have those experts.  After a fence it adds each total, and
    one report, to the sum there: a rank that sees all reports in a sum knows that totals and indices have been written."""
    problem = ctx.config.problem
    experts = own_experts(ctx, group)
    owners = [div(expert, problem.experts_per_rank) for expert in experts]
    peers = [ctx.peer(minimum(owner, problem.num_ranks - 1)) for owner in owners]
    for signal in cutlass.range_constexpr(2):
        for expert, total, owner, peer in zip(experts, totals, owners, peers, strict=True):
            if expert < problem.num_experts:
                local, tokens = expert - owner * problem.experts_per_rank, Int64(total)
                if cutlass.const_expr(not signal):
                    store_u64(ctx.at_peer(peer, "expert_recv_count", ctx.args.rank, local), tokens)
                else:
                    reduce_add_u64(ctx.at_peer(peer, "expert_recv_count_sum", local), tokens + ONE_REPORT, "relaxed", "sys")
        if cutlass.const_expr(not signal):
            fence_sys()


MASKED = -1


def expert_of(ctx: Context, token: Any, slot: Any) -> Int32:
    """Expert of a token's slot; negative when the slot is masked.  An index that names no expert masks its slot, be it -1 or not: it must
    not become an address on another rank.  `slot` may exceed top-k: slots of all tokens lie one after another."""
    index = Uint64(load_constant_u64(ctx.at("topk_idx", token, slot)))
    return select(index < ctx.config.problem.num_experts, Int32(index), Int32(MASKED))

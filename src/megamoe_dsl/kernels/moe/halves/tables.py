"""The routing tables of a rank: where each pair's row lies on its expert's rank, and which pairs every rank fetches from here.

waits     SPLITS: the counts of all CTAs, then of all ranks are there
signals   SPLITS, when this rank has told every rank how many tokens it has for each expert, and how many pairs for that rank

Every warp has tokens that follow one another, and sorts their pairs twice (blocks/block_sort.py): all of them by expert, and those whose
token travels by expert or by rank.  As many CTAs do so as have a turn for all of their warps, up to those of the grid; they leave one
another their counts, and the first one talks to the other ranks.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ....blocks.block_sort import NO_KEY, clear_counts, count, count_of_key, counts_to_places, find_place, pass_places, sum_of_block
from ....blocks.cta import shared_memory
from ....blocks.rank_barrier import Group, arrive, arrive_no_wait, await_ranks, collect, signal
from ....device.memory import load_shared_u32, load_u32, load_u64, store_shared_u32, store_u32
from ....device.sync import Reached32
from ....device.warp import shuffle
from ....layouts.arith import ceil_div, div, minimum, select
from .config import AT_A_TIME, LANES, WARPS, RoutingTablesConfig
from .context import EpContext
from .layouts.symmetric import EpBarrier, padded_rows

CTA_BARRIER = 1  # named; 0 is that of sync_threads
SORTS = "rows", "pulls"  # their counters in shared memory


def pairs_of(ctx: EpContext, first: Any, last: Any, lane: Any) -> list[tuple[Any, Any, Any]]:
    """A lane's next pairs, of tokens from `first` to `last`: expert, `NO_KEY` where it names none, number, and whether there is one.
    All are on their way from memory before one is looked at."""
    problem, step = ctx.config.problem, ctx.config.tokens_at_a_time
    tokens = [first + step * i + div(lane, problem.topk) for i in range(AT_A_TIME)]
    there = [(token < last) & (lane < step * problem.topk) for token in tokens]
    places = [(minimum(token, last - 1), lane - div(lane, problem.topk) * problem.topk) for token in tokens]
    named = [load_u64(ctx.at("topk_idx", token, slot)) for token, slot in places]
    experts = [
        select(one & (name >= 0) & (name < problem.num_experts), Int32(name), Int32(NO_KEY)) for one, name in zip(there, named, strict=True)
    ]
    return list(zip(experts, (token * problem.topk + slot for token, slot in places), there, strict=True))


def list_key(ctx: EpContext, expert: Any, lane: Any) -> Any:
    """What a lane's pair is sorted by in the list of its expert's rank; `NO_KEY` where its token travels for another expert of it."""
    problem = ctx.config.problem
    rank, travels = div(expert, problem.experts_per_rank), expert != NO_KEY
    if ctx.config.token_saving:
        token = lane - (lane - div(lane, problem.topk) * problem.topk)
        for slot in range(problem.topk):
            other = shuffle(expert, token + slot)
            travels = travels & ((other == NO_KEY) | (div(other, problem.experts_per_rank) != rank) | (other >= expert))
    return select(travels, expert if ctx.config.token_sorting else rank, Int32(NO_KEY))


@cute.jit
def count_pairs(ctx: EpContext, rows: Int32, pulls: Int32, first: Int32, last: Int32, lane: Int32):
    """A warp's tokens from `first` to `last`; rows and pulls are its counters."""
    for start in cutlass.range(first, last, AT_A_TIME * ctx.config.tokens_at_a_time, unroll=1):
        found = pairs_of(ctx, start, last, lane)
        for i in cutlass.range_constexpr(AT_A_TIME):
            count(rows, found[i][0])
            count(pulls, list_key(ctx, found[i][0], lane))


@cute.jit
def place_pair(ctx: EpContext, rows: Int32, pulls: Int32, lane: Int32, expert: Int32, number: Int32, there: Boolean):
    """Stores the row of one pair of each lane, and its place in the list of its expert's rank."""
    found = find_place(rows, expert, lambda place: None)
    if there:
        store_u32(ctx.at("pair_rows", 0, number), found[0])
    pass_places(rows, expert, *found)
    key, rank = list_key(ctx, expert, lane), div(expert, ctx.config.problem.experts_per_rank)
    pass_places(pulls, key, *find_place(pulls, key, lambda place: store_u32(ctx.at("send_pairs", rank, place), number)))


@cute.jit
def place_pairs(ctx: EpContext, rows: Int32, pulls: Int32, first: Int32, last: Int32, lane: Int32):
    """The same tokens: the row of every pair, and the place in a list of those whose token travels."""
    for start in cutlass.range(first, last, AT_A_TIME * ctx.config.tokens_at_a_time, unroll=1):
        found = pairs_of(ctx, start, last, lane)
        for i in cutlass.range_constexpr(AT_A_TIME):
            place_pair(ctx, rows, pulls, lane, *found[i])


@cute.jit
def leave_counts(ctx: EpContext, group: Group, epoch: Int32, ctas: Int32):
    """Tells the other CTAs what this one has counted, and waits until all have done so; there may be no other."""
    if ctas > 1:
        for sort in cutlass.range_constexpr(len(SORTS)):
            if group.thread < ctx.config.problem.num_experts:
                store_u32(ctx.at("cta_counts", ctx.sm, sort, group.thread), pairs_of_cta(ctx, SORTS[sort], group.thread))
        arrive(ctx, group, EpBarrier.SPLITS)
        collect(ctx, group, EpBarrier.SPLITS, epoch)
    else:
        arrive_no_wait(ctx, group, EpBarrier.SPLITS)


def pairs_of_cta(ctx: EpContext, sort: str, key: Any) -> Any:
    """Pairs of a key that this CTA has counted for a sort."""
    return count_of_key(ctx.shared(sort, 0, key), ctx.config.problem.num_experts * 4, WARPS)


@cute.jit
def pairs_of_ctas(ctx: EpContext, sort: cutlass.Constexpr[str], key: Int32, ctas: Int32):
    """The same in the CTAs before this one, and in all."""
    before, total = Int32(0), pairs_of_cta(ctx, sort, key)
    if ctas > 1:
        total = Int32(0)
        for other in cutlass.range_constexpr(ctx.config.num_sms):
            number = load_u32(ctx.at("cta_counts", minimum(Int32(other), ctas - 1), SORTS.index(sort), key))
            before = before + select(ctx.sm > other, number, Int32(0))
            total = total + select(ctas > other, number, Int32(0))
    return before, total


@cute.jit
def start_lists(ctx: EpContext, thread: Int32, parity: Int32, cta: Int32, ctas: Int32):
    """Counters of pairs that travel become places in lists; every rank is told the length of its own.  Thread k has key k."""
    problem, before, total = ctx.config.problem, Int32(0), Int32(0)
    keys, per_rank = (problem.num_experts, problem.experts_per_rank) if ctx.config.token_sorting else (problem.num_ranks, 1)
    if thread < keys:
        before, total = pairs_of_ctas(ctx, "pulls", thread, ctas)
    end = sum_of_block(total, lambda one: ctx.shared("sums", one), thread, WARPS)
    if thread < keys:
        store_shared_u32(ctx.shared("starts", thread), end - total)
    cute.arch.sync_threads()
    if thread < keys:
        rank = div(thread, per_rank)
        first = load_shared_u32(ctx.shared("starts", rank * per_rank))
        counts_to_places(ctx.shared("pulls", 0, thread), problem.num_experts * 4, WARPS, end - total - first + before)
        if (thread == rank * per_rank + (per_rank - 1)) & (cta == 0):
            store_u32(ctx.at_peer(ctx.peer(rank), "pulls", parity, ctx.args.rank), end - first)


@cute.jit
def tell_splits(ctx: EpContext, thread: Int32, parity: Int32, cta: Int32, ctas: Int32):
    """Every rank is told how many tokens this one has for each expert.  Thread e has expert e, of whose pairs in the CTAs before this one
    it returns the number."""
    problem, before = ctx.config.problem, Int32(0)
    if thread < problem.num_experts:
        before, total = pairs_of_ctas(ctx, "rows", thread, ctas)
        if cta == 0:
            for rank in cutlass.range(problem.num_ranks, unroll=1):
                store_u32(ctx.at_peer(ctx.peer(rank), "splits", parity, ctx.args.rank, thread), total)
    return before


@cute.jit
def start_rows(ctx: EpContext, thread: Int32, parity: Int32, cta: Int32, before: Int32):
    """Counters of pairs become rows on the expert's rank, behind those of lower ranks and, `before`, of the CTAs before this one; this
    rank's own experts and lists are counted."""
    problem, rank, rows = ctx.config.problem, ctx.args.rank, Int32(0)
    local, experts = problem.experts_per_rank, problem.num_experts
    if thread < experts:
        for source in cutlass.range(problem.num_ranks, unroll=1):
            of_source = load_u32(ctx.at("splits", parity, source, thread))
            rows = rows + of_source
            before = before + select(source < rank, of_source, Int32(0))
    padded = padded_rows(rows)
    first = sum_of_block(padded, lambda one: ctx.shared("sums", one), thread, WARPS) - padded
    if thread < experts:
        store_shared_u32(ctx.shared("starts", thread), first)
    cute.arch.sync_threads()
    if thread < experts:
        owner = div(thread, local)
        first = first - load_shared_u32(ctx.shared("starts", owner * local))
        counts_to_places(ctx.shared("rows", 0, thread), experts * 4, WARPS, first + before)
        if (owner == rank) & (cta == 0):
            store_u32(ctx.at("expert_rows", thread - rank * local), rows)
    if (thread < problem.num_ranks) & (cta == 0):
        store_u32(ctx.at("recv_pairs", thread), load_u32(ctx.at("pulls", parity, thread)))


@cute.jit
def make_tables(ctx: EpContext, group: Group, cta: Int32, ctas: Int32):
    """One of so many CTAs."""
    config, num_tokens, thread = ctx.config, ctx.args.num_tokens, group.thread
    warp, lane = thread // LANES, thread % LANES
    epoch = load_u32(ctx.at("launch_epoch")) + 1
    # Two sets: a rank may be in its next launch while another still reads this one's.
    parity = epoch & 1
    clear_counts(ctx.shared("rows", 0, 0), 2 * WARPS * config.problem.num_experts, thread, config.num_threads)
    cute.arch.sync_threads()
    each = div(num_tokens + (ctas * WARPS - 1), ctas * WARPS)
    first = minimum((cta * WARPS + warp) * each, num_tokens)
    last = minimum(first + each, num_tokens)
    rows, pulls = ctx.shared("rows", warp, 0), ctx.shared("pulls", warp, 0)
    count_pairs(ctx, rows, pulls, first, last, lane)
    cute.arch.sync_threads()
    if cutlass.const_expr(config.num_sms > 1):
        leave_counts(ctx, group, epoch, ctas)
    before = tell_splits(ctx, thread, parity, cta, ctas)
    start_lists(ctx, thread, parity, cta, ctas)
    group.sync()
    if cta == 0:
        signal(ctx, group, EpBarrier.SPLITS)
    await_ranks(ctx, group, EpBarrier.SPLITS, epoch, Reached32)
    start_rows(ctx, thread, parity, cta, before)
    cute.arch.sync_threads()
    place_pairs(ctx, rows, pulls, first, last, lane)
    if (thread == 0) & (cta == 0):
        store_u32(ctx.at("launch_epoch"), epoch)


@cute.kernel
def routing_tables_kernel(config: cutlass.Constexpr[RoutingTablesConfig], args: Any):
    """The CTAs of a rank: those for which there is a turn, and the first one in any case."""
    ctx = EpContext(config, args, shared_memory(config.smem.region))
    group = Group(CTA_BARRIER, config.num_threads, Int32(cute.arch.thread_idx()[0]))
    if cutlass.const_expr(config.num_sms == 1):
        make_tables(ctx, group, 0, 1)
    else:
        ctas = cutlass.max(minimum(ceil_div(args.num_tokens, config.tokens_of_turn), config.num_sms), 1)
        if ctx.sm < ctas:
            make_tables(ctx, group, ctx.sm, ctas)
        else:
            arrive_no_wait(ctx, group, EpBarrier.SPLITS)

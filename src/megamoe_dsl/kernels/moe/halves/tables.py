"""The routing tables of a rank, by one CTA: where each pair's row lies on its expert's rank, and which pairs every rank fetches from here.

waits     SPLITS: the counts of all ranks are there
signals   SPLITS, when this rank has told every rank how many tokens it has for each expert, and how many pairs for that rank

Every warp has tokens that follow one another, and sorts their pairs twice (blocks/block_sort.py): all of them by expert, and those whose
token travels by expert or by rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ....blocks.block_sort import NO_KEY, clear_counts, count, count_of_key, counts_to_places, find_place, pass_places, sum_of_block
from ....blocks.cta import shared_memory
from ....blocks.rank_barrier import Group, await_ranks, signal
from ....device.memory import load_shared_u32, load_u32, load_u64, store_shared_u32, store_u32
from ....device.warp import shuffle
from ....layouts.arith import ceil_div, div, minimum, select
from .config import LANES, WARPS, RoutingTablesConfig
from .context import EpContext
from .layouts.symmetric import EpBarrier, padded_rows

CTA_BARRIER = 1  # named; 0 is that of sync_threads
AT_A_TIME = 4
"""Pairs of a lane whose experts are on their way from memory together."""


@dataclass(frozen=True)
class Pair:
    """A lane's next one: its number, whether there is one, and its expert, `NO_KEY` where it names none."""

    number: Int32
    there: Boolean
    expert: Int32


def pairs_of(ctx: EpContext, first: Any, last: Any, lane: Any) -> list[Pair]:
    """A lane's next pairs, of tokens from `first` to `last`.  All are on their way from memory before one is looked at."""
    problem, step = ctx.config.problem, ctx.config.tokens_at_a_time
    tokens = [first + step * i + div(lane, problem.topk) for i in range(AT_A_TIME)]
    there = [(token < last) & (lane < step * problem.topk) for token in tokens]
    places = [(minimum(token, last - 1), lane - div(lane, problem.topk) * problem.topk) for token in tokens]
    named = [load_u64(ctx.at("topk_idx", token, slot)) for token, slot in places]
    experts = [
        select(one & (name >= 0) & (name < problem.num_experts), Int32(name), Int32(NO_KEY)) for one, name in zip(there, named, strict=True)
    ]
    pairs = [token * problem.topk + slot for token, slot in places]
    return [Pair(*one) for one in zip(pairs, there, experts, strict=True)]


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
            count(rows, found[i].expert)
            count(pulls, list_key(ctx, found[i].expert, lane))


@cute.jit
def place_pair(ctx: EpContext, rows: Int32, pulls: Int32, one: Pair, lane: Int32):
    """Stores the row of one pair of each lane, and its place in the list of its expert's rank."""
    row = find_place(rows, one.expert, lambda place: None)
    if one.there:
        store_u32(ctx.at("pair_rows", 0, one.number), row.place)
    pass_places(rows, one.expert, row)
    key, rank = list_key(ctx, one.expert, lane), div(one.expert, ctx.config.problem.experts_per_rank)
    pull = find_place(pulls, key, lambda place: store_u32(ctx.at("send_pairs", rank, place), one.number))
    pass_places(pulls, key, pull)


@cute.jit
def place_pairs(ctx: EpContext, rows: Int32, pulls: Int32, first: Int32, last: Int32, lane: Int32):
    """The same tokens: the row of every pair, and the place in a list of those whose token travels."""
    for start in cutlass.range(first, last, AT_A_TIME * ctx.config.tokens_at_a_time, unroll=1):
        found = pairs_of(ctx, start, last, lane)
        for i in cutlass.range_constexpr(AT_A_TIME):
            place_pair(ctx, rows, pulls, found[i], lane)


@cute.jit
def start_lists(ctx: EpContext, thread: Int32, parity: Int32):
    """Counters of pairs that travel become places in lists; every rank is told the length of its own.  Thread k has key k."""
    config, problem, key_of = ctx.config, ctx.config.problem, ctx.config.problem.experts_per_rank
    counter, stride, total = ctx.shared("pulls", 0, thread), problem.num_experts * 4, Int32(0)
    keys = problem.num_experts if config.token_sorting else problem.num_ranks
    per_rank = key_of if config.token_sorting else 1
    if thread < keys:
        total = count_of_key(counter, stride, WARPS)
    end = sum_of_block(total, lambda one: ctx.shared("sums", one), thread, WARPS)
    if thread < keys:
        store_shared_u32(ctx.shared("starts", thread), end - total)
    cute.arch.sync_threads()
    if thread < keys:
        rank = div(thread, per_rank)
        first = load_shared_u32(ctx.shared("starts", rank * per_rank))
        counts_to_places(counter, stride, WARPS, end - total - first)
        if thread == rank * per_rank + (per_rank - 1):
            store_u32(ctx.at_peer(ctx.peer(rank), "pulls", parity, ctx.args.rank), end - first)


@cute.jit
def tell_splits(ctx: EpContext, thread: Int32, parity: Int32):
    """Every rank is told how many tokens this one has for each expert.  Thread e has expert e."""
    problem = ctx.config.problem
    if thread < problem.num_experts:
        total = count_of_key(ctx.shared("rows", 0, thread), problem.num_experts * 4, WARPS)
        for rank in cutlass.range(problem.num_ranks, unroll=1):
            store_u32(ctx.at_peer(ctx.peer(rank), "splits", parity, ctx.args.rank, thread), total)


@cute.jit
def start_rows(ctx: EpContext, thread: Int32, parity: Int32):
    """Counters of pairs become rows on the expert's rank, behind those of lower ranks; this rank's own experts and lists are counted."""
    problem, rank = ctx.config.problem, ctx.args.rank
    local, experts = problem.experts_per_rank, problem.num_experts
    rows, before = Int32(0), Int32(0)
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
        if owner == rank:
            store_u32(ctx.at("expert_rows", thread - rank * local), rows)
    if thread < problem.num_ranks:
        store_u32(ctx.at("recv_pairs", thread), load_u32(ctx.at("pulls", parity, thread)))


@cute.kernel
def routing_tables_kernel(config: cutlass.Constexpr[RoutingTablesConfig], args: Any):
    """The CTA of a rank."""
    thread = Int32(cute.arch.thread_idx()[0])
    ctx = EpContext(config, args, shared_memory(config.smem.region))
    group, warp, lane = Group(CTA_BARRIER, config.num_threads, thread), thread // LANES, thread % LANES
    epoch = load_u32(ctx.at("launch_epoch")) + 1
    # Two sets: a rank may be in its next launch while another still reads this one's.
    parity = epoch & 1
    clear_counts(ctx.shared("rows", 0, 0), 2 * WARPS * config.problem.num_experts, thread, config.num_threads)
    cute.arch.sync_threads()
    each = ceil_div(args.num_tokens, WARPS)
    first = minimum(warp * each, args.num_tokens)
    last = minimum(first + each, args.num_tokens)
    rows, pulls = ctx.shared("rows", warp, 0), ctx.shared("pulls", warp, 0)
    count_pairs(ctx, rows, pulls, first, last, lane)
    cute.arch.sync_threads()
    tell_splits(ctx, thread, parity)
    start_lists(ctx, thread, parity)
    group.sync()
    signal(ctx, group, EpBarrier.SPLITS)
    await_ranks(ctx, group, EpBarrier.SPLITS, epoch)
    start_rows(ctx, thread, parity)
    cute.arch.sync_threads()
    place_pairs(ctx, rows, pulls, first, last, lane)
    if thread == 0:
        store_u32(ctx.at("launch_epoch"), epoch)

"""Second part of the dispatch warps: pull tokens from the ranks that have them into the pool (article 4.1.6).

waits     pull barrier of the warp, per token; of a pool that is a ring, fc2_read_count of the block whose rows a token takes
signals   fc1_arrival_count of the token's pool block, per token (release, after data, scales, weight and metadata)

Each of a CTA's n dispatch warps takes every (n * num_sms)-th token of this rank's experts, laid end to end.  Within an expert the source
ranks take turns as long as they have tokens left (min-peeling), so that at any time the warps of the grid pull from all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from ...blocks.tiles import SharedTable
from ...device.mbarrier import arrive_expect, wait
from ...device.memory import load_f32, load_u32, load_u64, reduce_add_u32, store_f32, store_u32, store_u64
from ...device.tma import commit_group, load_bytes, store_bytes, wait_group, wait_group_read
from ...device.warp import ballot, elect, lanes_below, lowest_bit, popc, sync_warp, warp_min_u32
from ...layouts.arith import ceil_div, div, minimum, select
from .context import Context
from .layouts.smem_plan import RowChunks
from .layouts.symmetric import scale_words
from .pool import wait_rows

NO_TOKENS_LEFT = 0x7FFFFFFF
LANES = 32  # of a warp: so many ranks are one set

Store = Callable[[int, Any, int], None]
"""Of a chunk at this offset of a row, from its place in SMEM, with so many bytes."""


@dataclass(frozen=True)
class Cursor:
    """Position in the received tokens: `index` within the tokens of `expert`, of which there are `tokens`."""

    table: SharedTable
    expert: Int32
    index: Int32
    tokens: Int32

    def advance(self) -> Cursor:
        """The same position, as an index into the next expert's tokens."""
        expert = self.expert + 1
        return dataclasses.replace(self, expert=expert, index=self.index - self.tokens, tokens=self.table.tokens(expert))


@dataclass(frozen=True)
class Source:
    """The `index`-th token that `rank` sends to an expert."""

    rank: Int32
    index: Int32


@cute.jit
def advance_to_valid(cursor: Cursor, experts: cutlass.Constexpr[int]) -> Cursor:
    """Moves on to the expert that has the token; `expert` becomes `experts` when no token is left."""
    while (cursor.expert < experts) & (cursor.index >= cursor.tokens):
        cursor = cursor.advance()
    return cursor


@cute.jit
def pull_tokens(ctx: Context, warp: Int32):
    """Pulls one dispatch warp's share of the tokens into the pool."""
    problem = ctx.config.problem
    lane = cute.arch.lane_idx()
    table = SharedTable(ctx.shared("expert_table"))
    warps = ctx.config.dispatch_warps
    cursor = advance_to_valid(Cursor(table, Int32(0), ctx.sm * warps + warp, table.tokens(Int32(0))), problem.experts_per_rank)
    uses, loaded, rank_tokens = Int32(0), Int32(-1), no_tokens(problem.num_ranks)
    while cursor.expert < problem.experts_per_rank:
        if cursor.expert != loaded:
            loaded = cursor.expert
            rank_tokens = tokens_of_ranks(ctx, rank_tokens, loaded, lane)
            sync_warp()
        source = choose_source(problem.num_ranks, rank_tokens, cursor.index)
        pull_token(ctx, cursor, source, warp, lane, uses)
        uses = uses + 1
        cursor = advance_to_valid(dataclasses.replace(cursor, index=cursor.index + ctx.config.num_sms * warps), problem.experts_per_rank)


def no_tokens(num_ranks: int) -> tuple[Int32, ...]:
    """What a lane holds of every set of 32 ranks before it has counted: no tokens."""
    return (Int32(0),) * ceil_div(num_ranks, LANES)


@cute.jit
def tokens_of_ranks(ctx: Context, before: tuple[Int32, ...], expert: Int32, lane: Int32):
    """What the ranks send to an expert: lane l holds the tokens of ranks l, 32 + l and so on, and beyond the ranks what it held before."""
    tokens = list(before)
    for i in cutlass.range_constexpr(len(before)):
        rank = lane + LANES * i if i else lane
        if rank < ctx.config.problem.num_ranks:
            tokens[i] = Int32(load_u64(ctx.at("expert_recv_count", rank, expert)))
    return tuple(tokens)


def active_ranks(remaining: Sequence[Any]) -> list[Any]:
    """Each set of 32 ranks as a word, with a bit for each rank that has tokens left."""
    return [ballot(Int32(tokens > 0)) for tokens in remaining]


def shortest(remaining: Sequence[Any]) -> Any:
    """The least of what ranks that have tokens left have."""
    return warp_min_u32(reduce(minimum, [select(tokens > 0, tokens, Int32(NO_TOKENS_LEFT)) for tokens in remaining]))


@cute.jit
def choose_source(num_ranks: cutlass.Constexpr[int], rank_tokens: tuple[Int32, ...], slot: Int32) -> Source:
    """Min-peeling among what `tokens_of_ranks` gave (0 beyond the ranks).  The reference is `reference.dispatch_order`."""
    source = Source(Int32(0), slot)
    if cutlass.const_expr(num_ranks > 1):
        remaining, taken = rank_tokens, Int32(0)
        ranks = reduce(add, map(popc, active_ranks(remaining)))
        length = shortest(remaining)
        while slot >= length * ranks:
            slot = slot - length * ranks
            taken = taken + length
            remaining = tuple(tokens - minimum(tokens, length) for tokens in remaining)
            ranks = reduce(add, map(popc, active_ranks(remaining)))
            length = shortest(remaining)
        row = Int32(Uint32(slot) // Uint32(ranks))
        turn = slot - row * ranks
        source = Source(rank_of_turn(remaining, turn), taken + row)
    return source


def rank_of_turn(remaining: Sequence[Any], turn: Any) -> Any:
    """The rank that has so many before it with tokens left, and has some itself."""
    active, rank = active_ranks(remaining), None
    for i, tokens in enumerate(remaining):
        if i:
            turn = turn - popc(active[i - 1])
        mine = ballot(Int32((tokens > 0) & (popc(active[i] & lanes_below()) == turn)))
        rank = select(mine != 0, lowest_bit(mine) + LANES * i, rank) if i else lowest_bit(mine)
    return rank


@cute.jit
def pull_token(ctx: Context, cursor: Cursor, source: Source, warp: Int32, lane: Int32, uses: Int32):
    """Moves one token: TMA copies its row through SMEM, while the lanes copy scales, weight and metadata."""
    config, problem = ctx.config, ctx.config.problem
    token_topk = load_u32(ctx.at("src_token_topk_idx", cursor.expert, source.rank, source.index))
    token = div(token_topk, problem.topk)
    slot = token_topk - token * problem.topk
    peer = ctx.peer(source.rank)
    x = ctx.at_peer(peer, "x", token)
    load_chunk(ctx, x, warp, 0, config.smem.pull_slots)

    m_block = div(cursor.index, config.block_m)
    pool_block = cursor.table.first_block(cursor.expert) + m_block
    row = config.first_row(pool_block) + (cursor.index - m_block * config.block_m)
    sf_row = config.sf_row(pool_block, cursor.index - m_block * config.block_m)
    source_scales = ctx.at_peer(peer, "x_sf", token)
    words = scale_words(problem.formats.activations, problem.hidden)
    # All remote loads are issued before the first is used, so that their latencies overlap.
    places = [minimum(lane + first, words - 1) for first in range(0, words, 32)]
    scales = [load_u32(source_scales + Int64(word) * 4) for word in places]
    weight = load_f32(ctx.at_peer(peer, "topk_weights", 0, token_topk))
    wait_rows(ctx, pool_block)
    for i, word in enumerate(places):
        if lane + 32 * i < words:
            store_u32(ctx.at("fc1_sf", word, sf_row), scales[i])
    sync_warp()
    destination = ctx.at("fc1_acts", row)
    move_row(ctx, x, lambda offset, place, num_bytes: store_bytes(destination + offset, place, num_bytes), warp, lane, uses)
    if lane == 0:
        store_f32(ctx.at("fc1_topk_weights", row), weight)
        store_u64(ctx.at("token_src_metadata", row), ctx.at_peer(peer, "combine", slot, token))
        wait_group(0)
        reduce_add_u32(ctx.at("fc1_arrival_count", pool_block), 1, "release", "gpu")
    sync_warp()


def chunks_of(ctx: Context) -> RowChunks:
    """The bulk copies that move a token's row."""
    problem = ctx.config.problem
    return RowChunks(problem.formats.activations.row_bytes(problem.hidden), ctx.config.smem.pull_chunk)


@cute.jit
def load_chunk(ctx: Context, x: Int64, warp: Int32, first: cutlass.Constexpr[int], last: cutlass.Constexpr[int]):
    """Starts the loads of chunks `first` to `last - 1` of a row into their slots."""
    plan, row = ctx.config.smem, chunks_of(ctx)
    if elect():
        for chunk in cutlass.range_constexpr(first, last):
            slot = chunk % plan.pull_slots
            barrier = ctx.barrier("pull", warp * plan.pull_slots + slot)
            arrive_expect(barrier, row.size(chunk))
            load_bytes(ctx.shared("pull", warp, slot), x + row.start(chunk), row.size(chunk), barrier)
    sync_warp()


@cute.jit
def move_row(ctx: Context, x: Int64, store: cutlass.Constexpr[Store], warp: Int32, lane: Int32, uses: Int32):
    """Stores the chunks of a row into the pool as they arrive in the SMEM slots; a slot is loaded again when its store has read it.  `uses`
    counts the rows that this warp has moved.  Whoever has 0 for `lane` stores, by `store`: each to a place of its own."""
    plan, row = ctx.config.smem, chunks_of(ctx)
    chunks = row.count
    for chunk in cutlass.range_constexpr(chunks):
        slot, turn = chunk % plan.pull_slots, chunk // plan.pull_slots
        turns = len(range(slot, chunks, plan.pull_slots))  # of this slot in one row
        wait(ctx.barrier("pull", warp * plan.pull_slots + slot), (uses * turns + turn) & 1)
        if lane == 0:
            store(row.start(chunk), ctx.shared("pull", warp, slot), row.size(chunk))
            commit_group()
        if cutlass.const_expr(chunk + plan.pull_slots < chunks):
            if lane == 0:
                wait_group_read(0)
            sync_warp()
            load_chunk(ctx, x, warp, chunk + plan.pull_slots, chunk + plan.pull_slots + 1)

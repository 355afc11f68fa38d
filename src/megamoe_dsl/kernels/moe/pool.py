"""The rows of the pool: how dispatch warps pull tokens into them from the ranks that have them (article 4.1.6), what CTAs tell one another
about them, their top-k weights, and the biases that epilogues add to their sums.

`pull_tokens` waits for its warp's pull barrier, per token, and signals fc1_arrival_count of the token's block, per token (release, after
data, scales, weight and metadata).
Each of a CTA's n dispatch warps takes every (n * num_sms)-th token of this rank's experts, laid end to end.  Within an expert the source
ranks take turns as long as they have tokens left (min-peeling), so that at any time the warps of the grid pull from all of them.

Two waits are for what other CTAs write, and Linear1 signals its part.  In a pool that is a ring dispatch waits until the token block that
had the rows before has been read (schedule/fused_moe.py): what Linear1 reads of a block it has read when its outputs are there, and Linear2
waits for those, so the rows are free when Linear2 has read its operands and the places of its results.

Each wait has a watchdog, and each is an acquire: what was written before the counter reached its value is visible after the wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, or_
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from ...blocks.tiles import SharedTable
from ...device.cast import fma
from ...device.mbarrier import arrive_expect, wait
from ...device.memory import (
    fence_async_global,
    load_f32,
    load_f32x2,
    load_u32,
    load_u64,
    reduce_add_u32,
    reduce_add_u64,
    reduce_or_u64,
    store_f32,
    store_u32,
    store_u64,
)
from ...device.sync import Equals32, Equals64, spin
from ...device.tma import commit_group, load_bytes, store_bytes, wait_group, wait_group_read
from ...device.warp import ballot, elect, lanes_below, lowest_bit, popc, sync_warp, warp_min_u32
from ...layouts.arith import ceil_div, div, minimum, select
from ...recipe import ExpertFactors
from ...schedule.fused_moe import FC1
from .context import Context
from .layouts.smem_plan import TILE_ROWS, Wait, row_chunks

MASK_BITS = 64
"""Parts of a block's activations that `fc2_arrival` has a bit for; of more it has their number."""


def part_mark(ctx: Context, part: Any) -> Any:
    """What part number `part` of a block's activations adds to `fc2_arrival`: its bit, or one."""
    return Int64(1) << Int64(part) if ctx.config.fc2_parts <= MASK_BITS else Int64(1)


@cute.jit
def signal_part(ctx: Context, arrival: Any, mark: Any):
    """A part, with its scales, is in the pool (release): `mark` goes to the block's `fc2_arrival`."""
    if cutlass.const_expr(ctx.config.fc2_parts <= MASK_BITS):
        reduce_or_u64(arrival, mark, "release", "gpu")
    else:
        reduce_add_u64(arrival, mark, "release", "gpu")


@cute.jit
def wait_tokens(ctx: Context, tile: Any):
    """Until dispatch has written all that belongs to the tile's tokens."""
    count = Equals32(ctx.at("fc1_arrival_count", tile.pool_block), tile.valid_m, "gpu")
    spin(count, ctx.watchdog, Wait.FC1_ARRIVAL, tile.pool_block)


@cute.jit
def wait_operands(ctx: Context, tile: Any):
    """Until the tile's tokens, or its block's outputs of Linear1, are in the pool, visible to TMA, if they arrive in the same launch."""
    if cutlass.const_expr(ctx.operands_arrive):
        if tile.phase == FC1:
            wait_tokens(ctx, tile)
        else:
            parts = ctx.config.fc2_parts
            finished = (1 << parts) - 1 if parts <= MASK_BITS else parts
            arrived = Equals64(ctx.at("fc2_arrival", tile.pool_block), Int64(finished - (1 << 64) if finished >> 63 else finished), "gpu")
            spin(arrived, ctx.watchdog, Wait.FC2_ARRIVAL, tile.pool_block)
        # Other CTAs wrote the scales through the generic proxy, and TMA reads them through the async proxy: one fence here, in the reader,
        # replaces a fence in every writer.
        fence_async_global()


@cute.jit
def free_rows(ctx: Context, tile: Any, lane: Int32, places: list[Any], valid: list[Any]):
    """A math warp, when it has read what a Linear2 tile needs of the pool: at last the `places` of its results, of `valid` tokens and of
    rows without one.  It comes before the results leave, because a release waits for what was stored, and these go to other GPUs.

    A lane's release says nothing of loads of other lanes that nothing has used.  So it depends on all that was loaded: an address is not 0.
    """
    if cutlass.const_expr(ctx.config.ring_blocks > 0):
        read = reduce(or_, (select(one, place, Int64(1)) for place, one in zip(places, valid, strict=True)))
        if (lane == 0) & (ballot(Int32(read != 0)) != 0):
            reduce_add_u32(ctx.at("fc2_read_count", tile.pool_block), 1, "release", "gpu")


@cute.jit
def wait_rows(ctx: Context, pool_block: Int32):
    """A dispatch warp, before it writes into the rows of a token block."""
    config = ctx.config
    if cutlass.const_expr(config.ring_blocks > 0):
        before = pool_block - config.ring_blocks
        if before >= 0:
            readers = config.fc2_n_blocks * config.epilogue_warps
            count = Equals32(ctx.at("fc2_read_count", before), Int32(readers), "gpu")
            spin(count, ctx.watchdog, Wait.ROWS, pool_block)


def bias_address(ctx: Context, phase: int, expert: Any, row: Any) -> Any:
    """Address of the bias of a weight row, counted in the order of the weights."""
    config, args = ctx.config, ctx.args
    base, tiles = (args.fc1_bias, config.fc1_n_blocks) if phase == FC1 else (args.fc2_bias, config.fc2_n_blocks)
    return base + (Int64(expert) * (tiles * TILE_ROWS) + Int64(row)) * 4


def weighs_bias(ctx: Context, phase: int) -> bool:
    """Whether a token's bias is multiplied with its top-k weight: in Linear2, unless combine applies that."""
    return phase != FC1 and not ctx.config.problem.weigh_results


def weight_of(ctx: Context, row: Any) -> Any:
    """The top-k weight of a pool row, for what Linear2 reads; 1.0 where combine applies it."""
    return 1.0 if ctx.config.problem.weigh_results else load_f32(ctx.at("fc1_topk_weights", row))


def weights_of_pair(ctx: Context, address: Any) -> tuple[Any, ...]:
    """The same of two rows, from the address of the first one's."""
    return (1.0, 1.0) if ctx.config.problem.weigh_results else load_f32x2(address)


def expert_factor(ctx: Context, expert: Any, name: str) -> Any:
    """Reads a factor of a local expert, by its name in `recipe.ExpertFactors`."""
    return load_f32(ctx.args.factors + (Int64(expert) * len(ExpertFactors._fields) + ExpertFactors._fields.index(name)) * 4)


def add_bias(ctx: Context, phase: int, sum_: Any, bias: Any, weight: Any) -> Any:
    return fma(bias, weight, sum_) if weighs_bias(ctx, phase) else sum_ + bias


NO_TOKENS_LEFT = 0x7FFFFFFF
LANES = 32  # of a warp: so many ranks are one set


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
    warps = ctx.config.warps.dispatch
    cursor = advance_to_valid(Cursor(table, Int32(0), ctx.sm * warps + warp, table.tokens(Int32(0))), problem.experts_per_rank)
    uses, loaded, rank_tokens = Int32(0), Int32(-1), (Int32(0),) * ceil_div(problem.num_ranks, LANES)
    while cursor.expert < problem.experts_per_rank:
        if cursor.expert != loaded:
            loaded = cursor.expert
            rank_tokens = tokens_of_ranks(ctx, rank_tokens, loaded, lane)
            sync_warp()
        source = choose_source(problem.num_ranks, rank_tokens, cursor.index)
        pull_token(ctx, cursor, source, warp, lane, uses)
        uses = uses + 1
        cursor = advance_to_valid(dataclasses.replace(cursor, index=cursor.index + ctx.config.num_sms * warps), problem.experts_per_rank)


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
    words = problem.formats.activations.scale_words(problem.hidden)
    # All remote loads are issued before the first is used, so that their latencies overlap.
    places = [minimum(lane + first, words - 1) for first in range(0, words, 32)]
    scales = [load_u32(source_scales + Int64(word) * 4) for word in places]
    weight = load_f32(ctx.at_peer(peer, "topk_weights", 0, token_topk))
    wait_rows(ctx, pool_block)
    for i, word in enumerate(places):
        if lane + 32 * i < words:
            store_u32(ctx.at("fc1_sf", word, sf_row), scales[i])
    sync_warp()
    move_row(ctx, x, ctx.at("fc1_acts", row), warp, lane, uses)
    if lane == 0:
        store_f32(ctx.at("fc1_topk_weights", row), weight)
        store_u64(ctx.at("token_src_metadata", row), ctx.at_peer(peer, "combine", slot, token))
        wait_group(0)
        reduce_add_u32(ctx.at("fc1_arrival_count", pool_block), 1, "release", "gpu")
    sync_warp()


def chunks_of(ctx: Context) -> list[tuple[int, int]]:
    """The bulk copies that move a token's row."""
    problem = ctx.config.problem
    return row_chunks(problem.formats.activations.row_bytes(problem.hidden), ctx.config.smem.pull_chunk)


@cute.jit
def load_chunk(ctx: Context, x: Int64, warp: Int32, first: cutlass.Constexpr[int], last: cutlass.Constexpr[int]):
    """Starts the loads of chunks `first` to `last - 1` of a row into their slots."""
    plan, chunks = ctx.config.smem, chunks_of(ctx)
    if elect():
        for chunk in cutlass.range_constexpr(first, last):
            slot, (begin, num_bytes) = chunk % plan.pull_slots, chunks[chunk]
            barrier = ctx.barrier("pull", warp * plan.pull_slots + slot)
            arrive_expect(barrier, num_bytes)
            load_bytes(ctx.shared("pull", warp, slot), x + begin, num_bytes, barrier)
    sync_warp()


@cute.jit
def move_row(ctx: Context, x: Int64, destination: Int64, warp: Int32, lane: Int32, uses: Int32):
    """Stores the chunks of a row into the pool as they arrive in the SMEM slots; a slot is loaded again when its store has read it.  `uses`
    counts the rows that this warp has moved.  Whoever has 0 for `lane` stores: each to a `destination` of its own."""
    plan, places = ctx.config.smem, chunks_of(ctx)
    chunks = len(places)
    for chunk in cutlass.range_constexpr(chunks):
        slot, turn = chunk % plan.pull_slots, chunk // plan.pull_slots
        turns = len(range(slot, chunks, plan.pull_slots))  # of this slot in one row
        wait(ctx.barrier("pull", warp * plan.pull_slots + slot), (uses * turns + turn) & 1)
        if lane == 0:
            (begin, num_bytes), place = places[chunk], ctx.shared("pull", warp, slot)
            store_bytes(destination + begin, place, num_bytes)
            commit_group()
        if cutlass.const_expr(chunk + plan.pull_slots < chunks):
            if lane == 0:
                wait_group_read(0)
            sync_warp()
            load_chunk(ctx, x, warp, chunk + plan.pull_slots, chunk + plan.pull_slots + 1)

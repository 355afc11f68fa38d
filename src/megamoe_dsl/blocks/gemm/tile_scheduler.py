"""The tile scheduler: one warp of a cluster fills the tables of groups, walks the tile order and publishes work tiles in the SMEM of the
cluster's CTAs.  It waits for work_tile_empty and signals work_tile_full.

Clusters take tiles round-robin, or dynamically from a counter that the last fetch of a launch resets to 0.  A cluster of two takes two
adjacent tiles and fetches together what they share; if only one tile is left, the first CTA works alone.

Over the rows of experts on SM100 the warp finds a tile's expert by two ballots (AsteroMoE, "Tile Scheduler"), over 16-bit running sums of
the experts' row blocks: one sum per expert, and one per 32 experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import (
    load_relaxed_u32,
    load_shared_u16,
    load_shared_v2,
    load_u32,
    reduce_add_u32,
    store_shared_u16,
    store_shared_u32,
    store_shared_v2,
)
from ...device.ring import TileQueue, fetch_numbers, publish
from ...device.warp import ballot, inclusive_sum, popc, shuffle, sync_warp
from ...layouts.arith import align, ceil_div, div, minimum, select
from ...schedule.gemm import DenseOrder, GroupedOrder
from ...schedule.scheduler import place_in_bands
from ..tiles import SharedTable, Walk, advance_to_valid, first_number, next_block, traced
from .context import ALONE, APART, LAST, SAME_TOKENS, SAME_WEIGHTS, GemmContext
from .problem import ALIGNED, CONTIGUOUS, MASKED, ROW_BLOCK, SORTED_BLOCKED
from .tile import LANES


@dataclass(frozen=True)
class EqualGroups(SharedTable):
    """Varlen-K: each of `groups` has tiles of the same `rows`; if D is added to (`adds`), a group without rows has no tiles."""

    rows: cutlass.Constexpr[int]
    groups: cutlass.Constexpr[int]
    adds: cutlass.Constexpr[bool]

    def tokens(self, expert: Any) -> Any:
        there = super().tokens(expert) > 0 if self.adds else expert < self.groups
        return select(there, Int32(self.rows), Int32(0))

    def first_block(self, expert: Any) -> Any:
        return expert * self.rows


@cute.jit
def fill_table(ctx: GemmContext):
    """Fills the table of groups; lane l has groups l, l + 32, ...  Entries are clamped to the rows that exist."""
    config, lane = ctx.config, cute.arch.lane_idx()
    # A launch that does not wait may find an older launch's table in the L1 of its SM.
    load = load_relaxed_u32 if config.prefetch_weights else load_u32
    count = config.problem.num_groups
    room = div(ctx.args.m, count)  # of a group of a masked problem
    for base in cutlass.range_constexpr(0, count + 1, 32):
        group = lane + base
        if group <= count:
            rows, first = Int32(0), Int32(0)
            if group < count:
                entry = ctx.args.groups + Int64(group) * 4
                if cutlass.const_expr(config.problem.kind == MASKED):
                    rows, first = cutlass.min(load(entry), room), group * room
                else:
                    if group > 0:
                        first = cutlass.max(cutlass.min(load(entry - 4), ctx.args.m), Int32(0))
                    if cutlass.const_expr(config.problem.kind == ALIGNED):
                        first = div(first + (ROW_BLOCK - 1), ROW_BLOCK) * ROW_BLOCK
                    rows = cutlass.min(load(entry), ctx.args.m) - first
            store_shared_v2(ctx.shared("group_table", group), cutlass.max(rows, Int32(0)), first)
    sync_warp()


@cute.jit
def fill_tables(ctx: GemmContext):
    """Fills, if the problem has tables, (rows, first row of D) of each group, and its first row of A if that differs."""
    if cutlass.const_expr(ctx.config.problem.has_table):
        fill_table(ctx)
    if cutlass.const_expr(ctx.config.problem.places_rows):
        place_rows(ctx)


@cute.jit
def place_rows(ctx: GemmContext):
    """Places of experts in whole blocks of rows, 32 experts at a time; rows that do not fit into D are dropped."""
    config, lane = ctx.config, cute.arch.lane_idx()
    problem, blocks_before = config.problem, Int32(0)
    for base in cutlass.range_constexpr(0, config.table_entries, LANES):
        group, count, packed = lane + base, Int32(0), Int32(0)
        if group < config.table_entries:
            count, packed = (Int32(word) for word in load_shared_v2(ctx.shared("group_table", group)))
        blocks = (count + (ROW_BLOCK - 1)) // ROW_BLOCK
        total = inclusive_sum(blocks)
        blocked = (blocks_before + total - blocks) * ROW_BLOCK
        blocks_before = blocks_before + shuffle(total, LANES - 1)
        source = blocked if problem.source == SORTED_BLOCKED else packed
        first = blocked if problem.result == SORTED_BLOCKED else packed
        room = cutlass.max(ctx.args.d_rows - first, Int32(0))
        if group < config.table_entries:
            store_shared_u32(ctx.shared("source_rows", group), source)
            store_shared_v2(ctx.shared("group_table", group), cutlass.min(count, room), first)
    sync_warp()


def table_of(ctx: GemmContext) -> SharedTable:
    """Rows and first row of each group, as the tile order sees them."""
    problem, address = ctx.config.problem, ctx.shared("group_table")
    if problem.sums_rows:
        return EqualGroups(address, ctx.config.tile_rows, problem.num_groups, problem.accumulate)
    return SharedTable(address)


def order_of(ctx: GemmContext) -> Any:
    """Tile order: by the table of groups in shared memory if there is one, else that of one matrix of `m` rows."""
    if ctx.config.problem.has_table:
        return traced(GroupedOrder)(ctx.config, table_of(ctx))
    return traced(DenseOrder)(ctx.config, ctx.args.m)


@cute.jit
def schedule_tiles(ctx: GemmContext):
    """The scheduler warp of a cluster's first CTA."""
    if ctx.cta_rank == 0:
        if cutlass.const_expr(not ctx.config.has_own_table):
            fill_tables(ctx)
        if cutlass.const_expr(ctx.config.brings_rows):
            find_tiles(ctx)
        else:
            walk_tiles(ctx)


@cute.jit
def walk_tiles(ctx: GemmContext):
    """Publishes the cluster's tiles in order, beginning with the tile of the cluster's number."""
    config = ctx.config
    number = first_number(ctx.sm, config)
    blocks = advance_to_valid(Walk.start(order_of(ctx), number, config.first_fetch, Int32))
    queue = ctx.first_tile
    while blocks.valid():
        queue = publish_tiles(ctx, blocks, queue)
        if cutlass.const_expr(config.dynamic_schedule):
            # Numbers beyond the first of each cluster.
            fetched = fetch_numbers(ctx.args.counter, config.blocks_per_fetch) + config.first_fetch
            blocks, number = advance_to_valid(blocks.forward(fetched - number)), fetched
            if blocks.valid() == 0:
                reset_counter(ctx, number, number - blocks.local)
        else:
            blocks = next_block(blocks)
    publish_tile(queue, (Int32(0), Int32(LAST), Int32(0), Int32(0)))


@cute.jit
def reset_counter(ctx: GemmContext, number: Int32, total: Int32):
    """Resets the counter if this is the last fetch of the launch.  Every cluster that had a tile fetches one number past the last of
    `total` tiles; the cluster with the highest such number resets.  There are as many fetches as tiles (or pairs of tiles): one for each
    after a cluster's first, and one past the end for each cluster."""
    taken = ctx.config.blocks_per_fetch
    fetches = div(total + (taken - 1), taken)
    if number == (fetches - 1) * taken + ctx.config.first_fetch:
        if cute.arch.lane_idx() == 0:
            reduce_add_u32(ctx.args.counter, 0 - fetches * taken, "relaxed", "gpu")


@cute.jit
def publish_tiles(ctx: GemmContext, blocks: Walk, queue: TileQueue):
    """Publishes a tile for each CTA of the cluster, or one for a pair, unless none belongs to a group.  Returns the advanced queue."""
    mine = [tile_of(ctx, blocks)]
    sharing = Int32(ALONE)
    if cutlass.const_expr(ctx.config.blocks_per_fetch > 1):
        following = advance_to_valid(blocks.forward(1))
        mine.append(tile_of(ctx, following))
        (group, n_block, row, _), (group_2, n_block_2, row_2, _) = mine
        weights = select((group == group_2) & (n_block == n_block_2), Int32(SAME_WEIGHTS), Int32(APART))
        sharing = select(n_block_2 == LAST, Int32(ALONE), select(row == row_2, Int32(SAME_TOKENS), weights))
    some = reduce(or_, [valid_m > 0 for *_, valid_m in mine])

    def words(cta: int) -> tuple[Any, ...]:
        group, n_block, row, valid_m = mine[min(cta, len(mine) - 1)]
        return (group * 4 + sharing, n_block, row, valid_m)

    if some:
        queue.wait_empty()
        publish(queue, words)
        queue = queue.next()
    return queue


@cute.jit
def tile_of(ctx: GemmContext, blocks: Walk) -> tuple[Int32, Int32, Int32, Int32]:
    """(group, n_block, row, valid_m) of a position."""
    config, block = ctx.config, blocks.block()
    n_block = select(blocks.valid(), block.n_block, Int32(LAST))
    row, group, valid_m = block.m_block * config.block_m, Int32(0), block.valid_m
    if cutlass.const_expr(config.problem.has_table):
        group = minimum(block.expert, Int32(config.num_experts - 1))
        row = row + table_of(ctx).first_block(block.expert)
    if cutlass.const_expr(config.problem.kind == CONTIGUOUS):
        if blocks.valid():
            group = load_u32(ctx.args.groups + Int64(div(row, ROW_BLOCK)) * 4)
        known = (group >= 0) & (group < config.num_experts)
        group, valid_m = select(known, group, Int32(0)), select(known, valid_m, Int32(0))
    return group, n_block, row, select(blocks.valid(), valid_m, Int32(0))


@cute.jit
def add_up_tiles(ctx: GemmContext) -> Int32:
    """Fills both tables of running sums, 32 experts at a time; returns the row blocks of all experts."""
    config, lane, total = ctx.config, cute.arch.lane_idx(), Int32(0)
    for first in cutlass.range_constexpr(0, align(config.num_experts, LANES), LANES):
        expert, rows = lane + first, Int32(0)
        if expert < config.num_experts:
            rows = Int32(load_shared_v2(ctx.shared("group_table", expert))[0])
        end = total + inclusive_sum(ceil_div(rows, config.block_m))
        store_shared_u16(ctx.shared("tile_ends", expert), end)
        total = shuffle(end, LANES - 1)
        if lane == 0:
            store_shared_u16(ctx.shared("run_ends", first // LANES), total)
    sync_warp()
    return total


@cute.jit
def find_expert(ctx: GemmContext, row_block: Int32) -> tuple[Int32, Int32]:
    """The expert of a row block, and the row blocks of the experts before it."""
    lane, runs = cute.arch.lane_idx(), align(ctx.config.num_experts, LANES) // LANES
    end = Int32(load_shared_u16(ctx.shared("run_ends", minimum(lane, runs - 1))))
    run = popc(ballot(Int32(end <= row_block)))
    before = shuffle(end, cutlass.max(run - 1, Int32(0)))
    end = Int32(load_shared_u16(ctx.shared("tile_ends", run * LANES + lane)))
    within = popc(ballot(Int32(end <= row_block)))
    of_run = shuffle(end, cutlass.max(within - 1, Int32(0)))
    first = cutlass.select_(run > 0, before, Int32(0))
    return run * LANES + within, Int32(cutlass.select_(within > 0, of_run, first))


@cute.jit
def tile_words(ctx: GemmContext, number: Int32) -> tuple[Any, Any, Any, Any]:
    """The four words of the tile with this number."""
    config = ctx.config
    expert, before = find_expert(ctx, div(number, config.n_blocks))
    rows, first_row = (Int32(word) for word in load_shared_v2(ctx.shared("group_table", expert)))
    m_block, n_block = place_in_bands(number - before * config.n_blocks, config.group_m, ceil_div(rows, config.block_m), config.n_blocks)
    row = m_block * config.block_m
    return expert * 4 + ALONE, n_block, first_row + row, minimum(rows - row, config.block_m)


@cute.jit
def find_tiles(ctx: GemmContext):
    """As `walk_tiles`, but finds each tile's expert by two ballots."""
    config, queue = ctx.config, ctx.first_tile
    total = add_up_tiles(ctx) * config.n_blocks
    number = first_number(ctx.sm, config)
    while number < total:
        publish_tile(queue, tile_words(ctx, number))
        queue = queue.next()
        if cutlass.const_expr(config.dynamic_schedule):
            number = fetch_numbers(ctx.args.counter, 1) + config.first_fetch
            if number >= total:
                reset_counter(ctx, number, total)
        else:
            number = number + config.first_fetch
    publish_tile(queue, (Int32(0), Int32(LAST), Int32(0), Int32(0)))


@cute.jit
def publish_tile(queue: TileQueue, words: cutlass.Constexpr[tuple[Any, ...]]):
    """Publishes the same tile for both CTAs, once all have read the previous tile in its place."""
    queue.wait_empty()
    publish(queue, lambda cta: words)

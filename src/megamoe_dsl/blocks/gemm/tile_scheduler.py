"""Which tile comes next: one warp of a cluster walks the sequence of tiles and publishes them in the SMEM of its CTAs.

Tiles go round robin, or are dealt at run time from a counter that the last fetch of a launch sets back to 0.  A cluster takes two tiles
that follow one another; what they have in common they fetch together, and where nothing is left for the second the first works alone.

| role           | waits           | signals        |
|---|---|---|
| schedule_tiles | work_tile_empty | work_tile_full |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import load_u32, reduce_add_u32
from ...device.ring import TileQueue, fetch_numbers, publish
from ...layouts.arith import div, minimum, select
from ...schedule.dense import DenseOrder
from ...schedule.grouped import GroupedOrder
from ..walk import Walk, advance_to_valid, first_number
from .context import GemmContext
from .group_table import GroupTable, fill_table
from .problem import CONTIGUOUS, ROW_BLOCK
from .work_tile import ALONE, APART, LAST, SAME_TOKENS, SAME_WEIGHTS


@dataclass(frozen=True)
class TracedDense(DenseOrder):
    """The order of a dense problem's tiles, and of a contiguous one's, in a kernel."""

    config: cutlass.Constexpr[Any]
    rows: Int32


@dataclass(frozen=True)
class TracedGrouped(GroupedOrder):
    """The order of the tiles of a problem with a table, in a kernel."""

    config: cutlass.Constexpr[Any]
    table: GroupTable


def order_of(ctx: GemmContext) -> Any:
    """Problems with a table take their tiles in the order of the one in shared memory, others as one matrix of `m` rows."""
    if ctx.config.problem.has_table:
        return TracedGrouped(ctx.config, GroupTable(ctx.shared("group_table")))
    return TracedDense(ctx.config, ctx.args.m)


@cute.jit
def schedule_tiles(ctx: GemmContext):
    """The scheduler warp.  The first tile of a CTA, or of a pair that has one together, has its number."""
    config = ctx.config
    if ctx.cta_rank == 0:
        if cutlass.const_expr(config.problem.has_table):
            fill_table(ctx)
        walk_tiles(ctx)


@cute.jit
def walk_tiles(ctx: GemmContext):
    """The same once the table of groups is there."""
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
            blocks = advance_to_valid(blocks.skip())
    queue.wait_empty()
    nothing = (Int32(0), Int32(LAST), Int32(0), Int32(0))
    publish(queue, lambda cta: nothing)


@cute.jit
def reset_counter(ctx: GemmContext, number: Int32, total: Int32):
    """Of `total` tiles each cluster that had one has now fetched a number past the last; who has the highest of them sets the counter
    back.  As many numbers are fetched as there are clusters' worth of tiles: each of those, beyond the first of each cluster, and one past
    the last for each cluster that had any."""
    taken = ctx.config.blocks_per_fetch
    fetches = div(total + (taken - 1), taken)
    if number == (fetches - 1) * taken + ctx.config.first_fetch:
        if cute.arch.lane_idx() == 0:
            reduce_add_u32(ctx.args.counter, 0 - fetches * taken, "relaxed", "gpu")


@cute.jit
def publish_tiles(ctx: GemmContext, blocks: Walk, queue: TileQueue):
    """A tile for each CTA of the cluster, or one for a pair; none where all belong to no group.  The queue's next place."""
    mine = [tile_of(ctx, blocks)]
    sharing = Int32(ALONE)
    if cutlass.const_expr(ctx.config.blocks_per_fetch > 1):
        following = advance_to_valid(blocks.forward(1))
        mine.append(tile_of(ctx, following))
        (group, n_block, row, _), (group_2, n_block_2, row_2, _) = mine
        weights = select((group == group_2) & (n_block == n_block_2), Int32(SAME_WEIGHTS), Int32(APART))
        sharing = select(n_block_2 == LAST, Int32(ALONE), select(row == row_2, Int32(SAME_TOKENS), weights))
    some = mine[0][3] > 0
    for tile in mine[1:]:
        some = some | (tile[3] > 0)

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
        row = row + GroupTable(ctx.shared("group_table")).first_row(block.expert)
    if cutlass.const_expr(config.problem.kind == CONTIGUOUS):
        if blocks.valid():
            group = load_u32(ctx.args.groups + Int64(div(row, ROW_BLOCK)) * 4)
        known = (group >= 0) & (group < config.num_experts)
        group, valid_m = select(known, group, Int32(0)), select(known, valid_m, Int32(0))
    return group, n_block, row, select(blocks.valid(), valid_m, Int32(0))

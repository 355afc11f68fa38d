"""Which tile comes next: the scheduler warp finds the expert of any number of a tile by two ballots, not expert by expert.

Every expert has its row blocks added to those before it, as 16 bits; of every 32 experts the last sum is kept again
(schedule/tile_sums.py is the same on the host).  The order of tiles is that of a packed GEMM.

| role           | waits           | signals        |
|---|---|---|
| schedule_experts | work_tile_empty | work_tile_full |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .....device.memory import load_shared_u16, load_shared_v2, store_shared_u16
from .....device.ring import TileQueue, fetch_numbers, publish
from .....device.warp import ballot, inclusive_sum, popc, shuffle, sync_warp
from .....layouts.arith import align, ceil_div, div, minimum
from .....schedule.raster import place_in_bands
from .....schedule.tile_sums import LANES
from ....walk import first_number
from ...context import GemmContext
from ...tile_scheduler import reset_counter
from ...work_tile import ALONE, LAST


@cute.jit
def add_up_tiles(ctx: GemmContext) -> Int32:
    """Fills both tables, 32 experts at a time; returns the row blocks of all experts."""
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
    """The expert that has this row block of all, and the row blocks before it."""
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
    """The tile with this number, as others read it."""
    config = ctx.config
    expert, before = find_expert(ctx, div(number, config.n_blocks))
    rows, first_row = (Int32(word) for word in load_shared_v2(ctx.shared("group_table", expert)))
    m_block, n_block = place_in_bands(number - before * config.n_blocks, config.group_m, ceil_div(rows, config.block_m), config.n_blocks)
    row = m_block * config.block_m
    return expert * 4 + ALONE, n_block, first_row + row, minimum(rows - row, config.block_m)


@cute.jit
def schedule_experts(ctx: GemmContext):
    """The scheduler warp of the cluster's first CTA, once the table of groups is there."""
    if ctx.cta_rank == 0:
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
    """The same tile for both CTAs, once all have read what is in its place."""
    queue.wait_empty()
    publish(queue, lambda cta: words)

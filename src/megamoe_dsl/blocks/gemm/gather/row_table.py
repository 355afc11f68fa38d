"""Where the rows of each expert begin, in A and in D: how the scheduler warp fills the tables of a CTA."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.memory import load_shared_v2, store_shared_u32, store_shared_v2
from ....device.warp import shuffle, shuffle_up, sync_warp
from .. import group_table
from ..context import GemmContext
from ..problem import ROW_BLOCK
from .problem import SORTED_BLOCKED

LANES = 32


@cute.jit
def fill_tables(ctx: GemmContext):
    """The scheduler warp: (rows, first row of D) of each expert, and its first row of A where that is another."""
    group_table.fill_table(ctx)
    if cutlass.const_expr(ctx.config.problem.places_rows):
        place_rows(ctx)


@cute.jit
def place_rows(ctx: GemmContext):
    """Blocks of the experts before each, 32 experts at a time; rows that do not fit into D are cut off."""
    config, lane = ctx.config, cute.arch.lane_idx()
    problem, blocks_before = config.problem, Int32(0)
    for base in cutlass.range_constexpr(0, config.table_entries, LANES):
        group, count, packed = lane + base, Int32(0), Int32(0)
        if group < config.table_entries:
            count, packed = (Int32(word) for word in load_shared_v2(ctx.shared("group_table", group)))
        blocks = (count + (ROW_BLOCK - 1)) // ROW_BLOCK
        total = blocks
        for step in (1, 2, 4, 8, 16):
            total = total + shuffle_up(total, step)
        blocked = (blocks_before + total - blocks) * ROW_BLOCK
        blocks_before = blocks_before + shuffle(total, LANES - 1)
        source = blocked if problem.source == SORTED_BLOCKED else packed
        first = blocked if problem.result == SORTED_BLOCKED else packed
        room = cutlass.max(ctx.args.d_rows - first, Int32(0))
        if group < config.table_entries:
            store_shared_u32(ctx.shared("source_rows", group), source)
            store_shared_v2(ctx.shared("group_table", group), cutlass.min(count, room), first)
    sync_warp()

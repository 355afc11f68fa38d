"""The index warp: which rows of A are a tile's, from the list in global memory to shared memory, a tile ahead of the warps that gather.

waits     work_tile_full and list_empty, per tile
signals   work_tile_empty and list_full, per tile, every lane once it has copied

Words of four bytes, which need no more alignment than a tile's first row has.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .....device.mbarrier import wait
from .....device.memory import arrive_when_copied, copy_word
from .....device.ring import Ring
from .....hardware.operand_tile import SF_ATOM_ROWS
from .....layouts.arith import select
from ...context import GemmContext
from ...work_tile import next_tile
from .barriers import LISTS

WORD = 4  # bytes


@cute.jit
def list_rows(ctx: GemmContext):
    """All lanes.  Rows beyond the tile's become 0 and are not read."""
    lane, lists = cute.arch.lane_idx(), Ring.start(LISTS)
    tile, tiles = next_tile(ctx.first_tile)
    while tile.valid():
        ctx.wait_rows(tile)
        wait(ctx.barrier("list_empty", lists.index), lists.phase ^ 1)
        first, place = ctx.source_row(tile), ctx.shared("rows", lists.index)
        for start in cutlass.range_constexpr(0, ctx.config.stage.sfa_atoms * SF_ATOM_ROWS, 32):
            row = lane + start
            source = ctx.args.sources + Int64(cutlass.min(first + row, ctx.args.m - 1)) * WORD
            copy_word(place + row * WORD, source, select(row < tile.valid_m, Int32(WORD), Int32(0)))
        arrive_when_copied(ctx.barrier("list_full", lists.index))
        lists = lists.next()
        tile, tiles = next_tile(tiles)

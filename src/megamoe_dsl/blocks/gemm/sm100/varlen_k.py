"""Loader warps where K are the rows of a group, 64 rows a stage, of 64 columns after another, as TMA swizzles them.

Both wait for work_tile_full per tile and empty per stage, and signal full of the even CTA, with the bytes that TMA brings.  Rows that a
list names, and those of a last stage that is not full, come by gather4, which makes zeros of rows that are not the group's.  A group
without rows has one stage of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.mbarrier import LEADER, arrive_expect_cluster
from ....device.ring import Stage
from ....device.tma import gather_rows, load_tile
from ....device.warp import elect
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....hardware.operand_tile import BOX_BYTES, K_ROWS, ROW_BYTES
from ....layouts.arith import select
from ....schedule.fused_moe import mma_tokens
from ... import tiles
from ..context import GemmContext, GemmTile
from ..gather import listed_in, source_of

ROWS = 4  # of a gather4
QUADS = K_ROWS // ROWS


@dataclass(frozen=True)
class Side:
    """One side of the product, in field `name` of a stage.  rows: the map that gather4 takes, `end` a row that is not there."""

    name: str
    gathers: bool
    boxes: int

    def rows(self, ctx: GemmContext) -> Any:
        return getattr(ctx.maps, self.name) if self.gathers else ctx.maps.sorted_rows

    def place(self, ctx: GemmContext, first: Any, number: Any, rows: Any) -> Any:
        """Where a group's row lies; a row that is not there beyond the group's."""
        if self.gathers:
            return select(number < rows, source_of(ctx, listed_in(ctx, rows, first, number)), ctx.args.a_rows)
        return select(number < rows, first + number, ctx.args.m)


def load_left(ctx: GemmContext) -> None:
    """A CTA has half of the columns that the MMA covers."""
    config = ctx.config
    side = Side("tokens", config.rows.listed_side, config.block_m // CLUSTER // K_ROWS)

    def column(tile: GemmTile) -> Any:
        return tile.row - tile.group * config.tile_rows + ctx.cta_rank * (mma_tokens(tile.valid_m) >> 1)

    tiles.load_tokens(ctx, ctx.first_stage, partial(fill, side=side, column=column), lambda ctx, tile: ctx.wait_rows(tile))


def load_right(ctx: GemmContext) -> None:
    """A CTA has 128 columns of each tile."""
    side = Side("weights", ctx.config.weights.gathers, BLOCK_N // K_ROWS)

    def column(tile: GemmTile) -> Any:
        return (tile.n_block * CLUSTER + ctx.cta_rank) * BLOCK_N

    tiles.load_weights(ctx, ctx.first_stage, partial(fill, side=side, column=column))


def fill(ctx: GemmContext, tile: GemmTile, stage: Stage, side: Side, column: Any) -> Any:
    """All stages of a tile; returns the one after them."""
    rows, first = ctx.rows_of_group(tile)
    x, whole = column(tile) * 2, Int32(0)
    if not side.gathers:
        whole = rows // K_ROWS
        stage = load_boxes(ctx, stage, side, x, first, whole)
    return gather_boxes(ctx, stage, side, x, (rows, first), whole, ctx.k_blocks_of(tile))


@cute.jit
def load_boxes(ctx: GemmContext, stage: Stage, side: cutlass.Constexpr[Side], x: Int32, first: Int32, k_blocks: Int32):
    """Stages whose rows all follow one another."""
    for k in cutlass.range(k_blocks, unroll=1):
        stage.wait_empty()
        full = stage.full & LEADER
        if elect():
            arrive_expect_cluster(full, side.boxes * BOX_BYTES)
            for box in range(side.boxes):
                place, rows = stage.shared(side.name) + box * BOX_BYTES, getattr(ctx.maps, side.name)
                load_tile(place, rows, full, x + box * ROW_BYTES, first + k * K_ROWS)
        stage = stage.next()
    return stage


@cute.jit
def gather_boxes(ctx: GemmContext, stage: Stage, side: cutlass.Constexpr[Side], x: Int32, group: Any, begin: Int32, end: Int32):
    """Stages `begin` to `end` of a tile, a lane four rows of a box."""
    lane, (rows, first) = cute.arch.lane_idx(), group
    quad, box = lane % QUADS, lane // QUADS
    for k in cutlass.range(begin, end, 1, unroll=1):
        own = k * K_ROWS + quad * ROWS
        places = [side.place(ctx, first, own + i, rows) for i in range(ROWS)]
        stage.wait_empty()
        full = stage.full & LEADER
        if lane == 0:
            arrive_expect_cluster(full, side.boxes * BOX_BYTES)
        if box < side.boxes:
            place = stage.shared(side.name) + box * BOX_BYTES + quad * (ROWS * ROW_BYTES)
            gather_rows(place, side.rows(ctx), full, x + box * ROW_BYTES, places)
        stage = stage.next()
    return stage

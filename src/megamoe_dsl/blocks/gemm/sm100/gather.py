"""The warps that bring rows of experts and their scales: rows by gather4, four at a time, or by one box where they are sorted; scales,
if there are any, by threads.

list_rows      waits work_tile_full and list_empty, per tile
               signals work_tile_empty and list_full, per tile, every lane once it has copied
gather_tokens  waits work_tile_full and list_full, per tile; empty, per stage
               signals work_tile_empty and list_empty, per tile; full of the even CTA and copied, per stage

A CTA has half of the rows that the MMA covers, and the scales of all.  Of two pairs with the same rows each brings half to both.  A thread
copies a row's words of scales to where `tcgen05.cp` takes the scales of the row's place in the tile, which may begin at any row of A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import LEADER, arrive_expect_cluster, arrive_released, release, wait
from ....device.memory import arrive_when_copied, copy_word, fence_async_shared, load_shared_u32, load_shared_v4
from ....device.ring import Ring, Stage
from ....device.tma import gather_rows, load_tile
from ....device.warp import elect
from ....hardware.operand_tile import SF_ATOM_BYTES, SF_ATOM_ROWS, utccp_row
from ....layouts.arith import select
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import mma_tokens
from ..context import GemmContext, GemmTile, next_tile
from ..gather import source_of
from ..tile import GATHER_WARPS, LISTS
from .load import issue_mma


@dataclass(frozen=True)
class CopiedStage(Stage):
    """`copied_barrier` counts the threads whose scales have arrived in this CTA."""

    @property
    def copied(self) -> Any:
        return self.shared("copied_barrier")

    def wait_copied(self) -> None:
        """Until this CTA's token scales are there, and the tensor core sees them."""
        wait(self.copied, self.ring.phase)
        fence_async_shared()

    def wait_full(self) -> None:
        super().wait_full()
        self.wait_copied()


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


ROWS = 4  # of a gather4


@dataclass(frozen=True)
class RowsOfThread:
    """What a thread brings of every stage of a tile."""

    half: Any  # rows of the tile that the CTA has
    first: Any  # row of A that the CTA's begin at, where they are sorted
    places: tuple[Any, ...]  # rows of A of the thread's gather4, where they are gathered
    quad: Any  # which four of the CTA's rows those are
    scaled: tuple[Any, ...]  # rows of A whose scales are the thread's, one of every 128 of the tile


@cute.jit
def gather_tokens(ctx: GemmContext, thread: Int32):
    """All threads of the warps that gather."""
    ctx.begin(Role.TOKEN_LOADER)
    lists = Ring.start(LISTS)
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        ctx.wait_rows(tile)
        ctx.stamp(Activity.WAIT_TOKENS, tile)
        if cutlass.const_expr(ctx.config.problem.gathers):
            stage = bring_tile(ctx, tile, thread, listed_rows(ctx, tile, thread, lists), stage)
            lists = lists.next()
        else:
            stage = bring_tile(ctx, tile, thread, sorted_rows(ctx, tile, thread), stage)
        ctx.stamp(Activity.LOAD, tile)
        tile, tiles = next_tile(tiles)


def own_half(ctx: GemmContext, tile: GemmTile) -> tuple[Any, Any]:
    """Rows of a tile that a CTA has, and the first of them: halves of what the MMA covers, not of block_m."""
    half = mma_tokens(tile.valid_m) >> 1
    return half, ctx.place_in_pair * half


def scaled_rows(ctx: GemmContext, thread: Any) -> list[Any]:
    """Rows of a tile whose scales a thread copies."""
    if not ctx.config.problem.formats.scaled:
        return []
    return [thread + start for start in range(0, ctx.config.stage.sfa_atoms * SF_ATOM_ROWS, SF_ATOM_ROWS)]


@cute.jit
def listed_rows(ctx: GemmContext, tile: GemmTile, thread: Int32, lists: Ring):
    """Rows that a list names.  Every thread gives the list's place back on its own: neither `bar.warp.sync` nor, in the machine code, a
    barrier of the CTA makes one thread's arrival wait for what the others read."""
    warp, lane = thread // 32, thread % 32
    half, first = own_half(ctx, tile)
    quad = lane * GATHER_WARPS + warp
    if cutlass.const_expr(ctx.config.pairs > 1):
        quad = quad * ctx.config.pairs + (ctx.cta_rank >> 1)
    wait(ctx.barrier("list_full", lists.index), lists.phase)
    own = first + cutlass.min(quad, Int32(ctx.config.block_m // 2 // ROWS - 1)) * ROWS
    words = load_shared_v4(ctx.shared("rows", lists.index, own))
    named = [source_of(ctx, Int32(word)) for word in words]
    scaled = [source_of(ctx, Int32(load_shared_u32(ctx.shared("rows", lists.index, row)))) for row in scaled_rows(ctx, thread)]
    release(ctx.barrier("list_empty", lists.index), reduce(cutlass.max, [*named, *scaled]))
    # TMA makes zeros of rows that are not there, and counts them.
    places = [select(own + i < tile.valid_m, row, ctx.args.a_rows) for i, row in enumerate(named)]
    return RowsOfThread(half, Int32(0), tuple(places), quad, tuple(scaled))


def sorted_rows(ctx: GemmContext, tile: GemmTile, thread: Any) -> RowsOfThread:
    """Rows that follow one another."""
    half, first = own_half(ctx, tile)
    source = ctx.source_row(tile)
    scaled = [source_of(ctx, source + row) for row in scaled_rows(ctx, thread)]
    return RowsOfThread(half, source + first, (), thread, tuple(scaled))


@cute.jit
def bring_tile(ctx: GemmContext, tile: GemmTile, thread: Int32, rows: RowsOfThread, stage: Stage):
    """All stages of a tile; returns the one after them."""
    config = ctx.config
    row_bytes, words = config.k_block.row_bytes, config.k_block.words
    scales = [ctx.args.a_sf + Int64(row) * (config.problem.k_words * WORD) for row in rows.scaled]
    places = [utccp_row(row) * WORD for row in scaled_rows(ctx, thread)]
    counts = [select(row < tile.valid_m, Int32(WORD), Int32(0)) for row in scaled_rows(ctx, thread)]
    for k in cutlass.range(config.k_blocks, unroll=1):
        stage.wait_empty()
        full = stage.full & LEADER
        if cutlass.const_expr(config.problem.gathers):
            if thread == 0:
                arrive_expect_cluster(full, rows.half * row_bytes)
            if rows.quad * ROWS < rows.half:
                place, ctas = stage.shared("tokens") + rows.quad * (ROWS * row_bytes), None if config.pairs == 1 else ctx.same_rows
                gather_rows(place, ctx.maps.tokens, full, k * row_bytes, rows.places, ctas)
        elif thread < 32:
            if elect():
                arrive_expect_cluster(full, config.block_m // 2 * row_bytes)
                load_sorted(ctx, stage.shared("tokens"), full, k * row_bytes, rows.first)
        for i in cutlass.range_constexpr(len(scales)):
            for word in cutlass.range_constexpr(words):
                atom = word * config.stage.sfa_atoms * SF_ATOM_BYTES
                copy_word(stage.shared("sfa") + atom + places[i], scales[i] + Int64((k * words + word) * WORD), counts[i])
        if cutlass.const_expr(config.problem.formats.scaled):
            arrive_when_copied(cast(CopiedStage, stage).copied)
        stage = stage.next()
    return stage


def load_sorted(ctx: GemmContext, destination: Any, full: Any, x: Any, first: Any) -> None:
    """A CTA's rows from row `first` of A on; where several pairs have the same, each brings its part of them to all."""
    ctas, rows = None, ctx.config.block_m // ctx.config.cluster
    if ctx.config.pairs > 1:
        pair = ctx.cta_rank >> 1
        destination = destination + pair * (rows * ctx.config.k_block.row_bytes)
        first, ctas = first + pair * rows, ctx.same_rows
    load_tile(destination, ctx.maps.tokens, full, x, first, ctas=ctas)


@cute.jit
def multiply_or_announce(ctx: GemmContext):
    """The MMA warp; the same warp of the odd CTA, where threads copy scales."""
    if ctx.place_in_pair == 0:
        issue_mma(ctx)
    elif cutlass.const_expr(ctx.config.problem.formats.scaled):
        announce_scales(ctx)


@cute.jit
def announce_scales(ctx: GemmContext):
    """A warp of the odd CTA, whose barriers its threads' copies arrive at: tells the even CTA, stage by stage, that they are there.

    waits     work_tile_full per tile; copied per stage
    signals   work_tile_empty per tile; full of the even CTA, per stage
    """
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        for _ in cutlass.range(ctx.config.k_blocks, unroll=1):
            cast(CopiedStage, stage).wait_copied()
            if cute.arch.lane_idx() == 0:
                arrive_released(stage.full & LEADER)
            stage = stage.next()
        tile, tiles = next_tile(tiles)

"""The math warpgroups of the GEMM kernel: tile by tile the main loop of a share (blocks/sm90) and an epilogue.

The next tile is read, and its scales of B are on their way, before the epilogue begins; after it where tiles may be half ones.

waits     work_tile_full, per tile; full, per stage
signals   work_tile_empty and empty, per warp, per tile and per stage
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...device.ring import Stage, TileQueue, release_stage
from ...device.tma import wait_group_read
from ...hardware.packed_tile import PackedPart
from ...layouts.arith import ceil_div, div, select
from ...layouts.records import Activity, Role
from ..sm90.packed_share import PackedBlock, PackedShare
from ..sm90.share import ColumnShare, MathThread, RowShare, ScaleMatrix, Share, WeightScales, accumulate_tile, multiply_ahead
from . import store
from .context import ALONE, GemmContext, GemmTile, next_tile
from .problem import SCALE_BLOCK
from .store import with_bias


@cute.jit
def math(ctx: GemmContext, warp: Int32, finish_rows: Callable[..., Any] = store.finish_rows):
    """All math warps; `warp` counts within them and is uniform, which keeps descriptors in uniform registers.  `finish_rows` makes D of the
    sums of tiles whose rows of A are the wgmma's rows."""
    me = MathThread(warp >> 2, warp & 3, cute.arch.lane_idx())
    ctx.begin(Role.MATH)
    tile, tiles = next_tile(ctx.first_tile)
    scales = load_scales(ctx, tile, me)
    stage = ctx.first_read_stage
    while tile.valid():
        stage = replace(stage, alone=Int32(tile.sharing == ALONE), row=ctx.source_row(tile))
        if cutlass.const_expr(ctx.config.half_tiles):
            if ctx.is_half(tile):
                stage = compute_rows(ctx, tile, scales, me, stage, True, finish_rows)
            else:
                stage = compute_rows(ctx, tile, scales, me, stage, False, finish_rows)
            # Read after the branches: where these have the next tile too, the place in the ring is not in uniform registers, and every
            # wgmma needs its descriptors moved there.
            tile, tiles = next_tile(tiles)
            scales = load_scales(ctx, tile, me)
        else:
            stage, tile, tiles, scales = compute(ctx, tile, tiles, scales, me, stage, finish_rows)
    ctx.read_end(tile, tiles)
    # What TMA still reads is this CTA's.
    wait_group_read(0)


@cute.jit
def compute(ctx: GemmContext, tile: GemmTile, tiles: TileQueue, scales: Any, me: MathThread, stage: Stage, finish_rows: Callable[..., Any]):
    """A warpgroup's share of a tile.  The ring's next stage; the next tile, the place of the one after it, and its scales."""
    if cutlass.const_expr(ctx.config.swap_ab):
        share: Any = share_of(ctx, tile, me)
        sums, stage = multiply_all(ctx, tile, stage, share, WeightScales(scales[:1], Boolean(False)))
    else:
        share = rows_of(ctx.config, me, False)
        if cutlass.const_expr(ctx.config.epilogue.idles):
            sums = share.zero().parts
            if share.first_token < tile.valid_m:
                sums, stage = multiply_rows(ctx, tile, scales, share, stage)
            else:
                stage = leave_out(ctx, tile, stage, me)
        else:
            sums, stage = multiply_rows(ctx, tile, scales, share, stage)
    ctx.stamp(Activity.MULTIPLY, tile)
    following, tiles = next_tile(tiles)
    scales = load_scales(ctx, following, me)
    if cutlass.const_expr(ctx.config.split_k):
        store.finish_split(ctx, tile, share, sums, tiles)
    elif cutlass.const_expr(ctx.config.swap_ab):
        store.finish_columns(ctx, tile, share, with_bias(ctx, tile, share, sums))
    elif cutlass.const_expr(ctx.config.epilogue.idles):
        if share.first_token < tile.valid_m:
            finish_parts(ctx, tile, share, sums, finish_rows)
    else:
        finish_parts(ctx, tile, share, sums, finish_rows)
    ctx.stamp(Activity.EPILOGUE, tile)
    return stage, following, tiles, scales


@cute.jit
def compute_rows(ctx: GemmContext, tile: GemmTile, scales: Any, me: MathThread, stage: Stage, half: bool, finish_rows: Callable[..., Any]):
    """The same of a tile that may be a half one.  The ring's next stage."""
    rows = rows_of(ctx.config, me, half)
    sums, stage = multiply_rows(ctx, tile, scales, rows, stage)
    ctx.stamp(Activity.MULTIPLY, tile)
    finish_parts(ctx, tile, rows, sums, finish_rows)
    ctx.stamp(Activity.EPILOGUE, tile)
    return stage


def finish_parts(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any, finish_rows: Callable[..., Any]) -> None:
    for share, own in me.parts(with_bias(ctx, tile, me, sums)):
        finish_rows(ctx, tile, share, own)


@cute.jit
def leave_out(ctx: GemmContext, tile: GemmTile, stage: Stage, me: MathThread) -> Stage:
    """A warpgroup none of whose rows of a tile are there: gives every stage back.  The ring's next stage."""
    for _ in cutlass.range(ctx.k_blocks_of(tile), unroll=1):
        stage.wait_full()
        release_stage(stage, me.lane)
        stage = stage.next()
    return stage


@cute.jit
def multiply_rows(ctx: GemmContext, tile: GemmTile, scales: Any, me: RowShare, stage: Stage):
    """The sums of a share, and the ring's next stage; with code of its own for each place where a row of scales can begin."""
    splits = ctx.config.tile.splits(me.half)
    if cutlass.const_expr(len(splits) == 1):
        return multiply_all(ctx, tile, stage, replace(me, split=splits[0]), scales_of(me, splits[0], scales))
    columns = me.chunks * me.chunk_rows
    before = cutlass.min(SCALE_BLOCK - (first_column(ctx.config, tile.n_block, me, me.half) & (SCALE_BLOCK - 1)), columns)
    sums = me.zero().parts
    for split in cutlass.range_constexpr(len(splits)):
        if before == splits[split]:
            sums, stage = multiply_all(ctx, tile, stage, replace(me, split=splits[split]), scales_of(me, splits[split], scales))
    return sums, stage


@cute.jit
def multiply_all(ctx: GemmContext, tile: GemmTile, stage: Stage, me: Share | PackedShare, scales: WeightScales):
    """All K blocks of a tile that this CTA has."""
    if cutlass.const_expr(not ctx.config.tile.scaled):
        return accumulate_tile(stage, me, ctx.k_blocks_of(tile), ctx.config.problem.formats.activations.element)
    if cutlass.const_expr(ctx.config.k_in_flight > 1):
        return multiply_ahead(stage, me, scales, ctx.k_blocks_of(tile), ctx.config.k_in_flight)
    stage.wait_full()
    ctx.stamp(Activity.WAIT_STAGE, tile)
    return me.multiply_tile(stage, scales, ctx.k_blocks_of(tile))


def rows_of(config: Any, me: MathThread, half: bool) -> RowShare:
    """What a thread's warpgroup has of a tile whose rows of A are the wgmma's rows."""
    tile = config.tile
    chunks = tile.chunks(half)
    whole = RowShare.of(me, tile.shares_rows(half), tile.columns(half) // chunks, chunks, 0, config.weights.mn_major)
    share: RowShare = config.weights.share(whole)
    return share


def share_of(ctx: GemmContext, tile: GemmTile, me: MathThread) -> ColumnShare | PackedShare:
    """What a thread's warpgroup has of a tile whose rows of A are the wgmma's columns: two blocks of 64 rows of B, or one."""
    config, blocks = ctx.config, ctx.config.tile.chunks(False)
    if not config.problem.decodes:
        return ColumnShare.of(me, config.block_m, blocks)
    table, part = ctx.shared("decoded"), PackedPart(config.block_n)
    if blocks > 1:
        return PackedShare.of(me, config.block_m, table, part)
    block = me.group if config.warpgroups > 1 else part.block_of_group(tile.n_block)
    return PackedBlock(me.group, me.warp, me.lane, config.block_m, table, part, block != 0)


def scales_of(me: RowShare, split: int, scales: Any) -> WeightScales:
    """One row of scales, where all columns lie before the next, or two; none where each column has its own."""
    return WeightScales(scales[:1] if split == me.chunks * me.chunk_rows else scales, Boolean(False))


def first_column(config: Any, n_block: Any, me: MathThread, half: bool) -> Any:
    """A warpgroup's share of a tile begins at this column of the sums, which is a row of its group's B."""
    own = me.group * config.tile.columns(half) if config.tile.shares_rows(half) else 0
    return n_block * config.block_n + own


@cute.jit
def load_scales(ctx: GemmContext, tile: GemmTile, me: MathThread):
    """The rows of B's scales that a warpgroup's columns of a tile have, over the lanes; the last row where there is no other."""
    config, problem, n_block = ctx.config, ctx.config.problem, cutlass.max(tile.n_block, Int32(0))
    column = first_column(config, n_block, me, False)
    if cutlass.const_expr(config.half_tiles):
        column = select(ctx.is_half(tile), first_column(config, n_block, me, True), column)
    first = div(column, SCALE_BLOCK)
    matrix = ScaleMatrix(ctx.args.b_sf, Int32(problem.k_blocks), config.most_k_blocks)
    lane = me.lane + ctx.first_k_block if config.split_k else me.lane
    base = tile.group * ceil_div(problem.group_rows, SCALE_BLOCK)
    return tuple(
        matrix.load(base + config.weights.scale_row(problem, first, i), lane) for i in range(config.weights.scale_rows(config.tile))
    )

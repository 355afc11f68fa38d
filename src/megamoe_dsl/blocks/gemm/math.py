"""The math warpgroups of the GEMM kernel: for each tile the main loop of a share (blocks/sm90) and an epilogue.

The next tile is read, and its scales of B requested, before the epilogue begins; after it if tiles may be half tiles.

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
    """All math warps; `warp` counts within them and is uniform, which keeps descriptors in uniform registers.  `finish_rows` is the
    epilogue of tiles without swap_ab."""
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
            # Read after the branches: if each branch read the next tile, the ring position would leave the uniform registers, and every
            # wgmma would need its descriptors moved back.
            tile, tiles = next_tile(tiles)
            scales = load_scales(ctx, tile, me)
        else:
            stage, tile, tiles, scales = compute(ctx, tile, tiles, scales, me, stage, finish_rows)
    ctx.read_end(tile, tiles)
    # TMA may still read shared memory of this CTA.
    wait_group_read(0)


@cute.jit
def compute(ctx: GemmContext, tile: GemmTile, tiles: TileQueue, scales: Any, me: MathThread, stage: Stage, finish_rows: Callable[..., Any]):
    """Computes a warpgroup's share of a tile.  Returns the next stage, the next tile, the queue after it, and that tile's scales."""
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
            ctx.config.epilogue.begin(ctx, tile, share)
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
    """Computes a share of a tile that may be a half tile.  Returns the next stage."""
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
    """Releases every stage of a tile in which the warpgroup has no valid rows.  Returns the next stage."""
    for _ in cutlass.range(ctx.k_blocks_of(tile), unroll=1):
        stage.wait_full()
        release_stage(stage, me.lane)
        stage = stage.next()
    return stage


@cute.jit
def multiply_rows(ctx: GemmContext, tile: GemmTile, scales: Any, me: RowShare, stage: Stage):
    """The sums of a share, and the next stage; specialized for each column at which a row of scales can begin."""
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
    """Multiplies all K blocks of a tile that this CTA has.  Returns the sums and the next stage."""
    if cutlass.const_expr(not ctx.config.tile.scaled):
        return accumulate_tile(stage, me, ctx.k_blocks_of(tile), ctx.config.problem.formats.activations.element)
    if cutlass.const_expr(ctx.config.k_in_flight > 1):
        return multiply_ahead(stage, me, scales, ctx.k_blocks_of(tile), ctx.config.k_in_flight)
    stage.wait_full()
    ctx.stamp(Activity.WAIT_STAGE, tile)
    return me.multiply_tile(stage, scales, ctx.k_blocks_of(tile))


def rows_of(config: Any, me: MathThread, half: bool) -> RowShare:
    """A warpgroup's share of a tile without swap_ab."""
    tile, chunks = config.tile, config.tile.chunks(half)
    shape = tile.shares_rows(half), chunks, tile.columns(half) // chunks, 0, config.weights.mn_major
    share: RowShare = config.weights.share(RowShare(me.group, me.warp, me.lane, *shape))
    return share


def share_of(ctx: GemmContext, tile: GemmTile, me: MathThread) -> ColumnShare | PackedShare:
    """A warpgroup's share of a tile with swap_ab: one or two blocks of 64 rows of B."""
    config, blocks = ctx.config, ctx.config.tile.chunks(False)
    if not config.problem.decodes:
        return ColumnShare.of(me, config.block_m, blocks)
    table, part = ctx.shared("decoded"), PackedPart(config.block_n)
    if blocks > 1:
        return PackedShare.of(me, config.block_m, table, part)
    block = me.group if config.warpgroups > 1 else part.block_of_group(tile.n_block)
    return PackedBlock(me.group, me.warp, me.lane, config.block_m, table, part, block != 0)


def scales_of(me: RowShare, split: int, scales: Any) -> WeightScales:
    """One row of scales if all columns lie before the next row's, else two; none if each column has its own scale."""
    return WeightScales(scales[:1] if split == me.chunks * me.chunk_rows else scales, Boolean(False))


def first_column(config: Any, n_block: Any, me: MathThread, half: bool) -> Any:
    """First column of a warpgroup's share of a tile, counted as a row of the group's B."""
    own = me.group * config.tile.columns(half) if config.tile.shares_rows(half) else 0
    return n_block * config.block_n + own


@cute.jit
def load_scales(ctx: GemmContext, tile: GemmTile, me: MathThread):
    """Rows of B's scales for a warpgroup's columns of a tile, spread over the lanes; clamped to the last row."""
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

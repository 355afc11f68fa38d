"""The math warpgroups of SM90: tile by tile the main loop (blocks/sm90/share.py) and an epilogue, then combine.

waits     work_tile_full, per tile; full, per stage; counts, once.  These warps need no wait of their own for what dispatch wrote for a
          tile's tokens: the token loader of this CTA has acquired it before it arrives on the tile's first full.  For Linear2 it acquires
          the Linear1 outputs, from CTAs that had acquired what dispatch wrote
signals   work_tile_empty and empty, per warp, per tile and per stage; see the epilogues for the rest
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....blocks.sm90.packed_share import DecodedAhead, DecodedShare, PackedShare
from ....blocks.sm90.share import ColumnShare, MathThread, RowShare, ScaleMatrix, Share, WeightScales, accumulate_tile
from ....device.mbarrier import wait
from ....device.ring import Ring, Stage
from ....device.stamps import begin, detail_of, stamp
from ....layouts.arith import select
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import FC1, FC2
from ..combine import combine_after_tiles
from ..context import Context, WorkTile, next_tile
from . import epilogue_columns, epilogue_rows
from .epilogue_columns import columns_with_bias
from .epilogue_rows import rows_with_bias

Finish = Callable[[Context, WorkTile, Share | PackedShare, Any, Ring], Ring]


def epilogue_of(ctx: Context) -> ModuleType:
    """The module that finishes tiles as the configuration computes them."""
    return epilogue_columns if ctx.config.swap_ab else epilogue_rows


@cute.jit
def math(ctx: Context, warp: Int32):
    """All math warps; `warp` counts within them and is uniform, which keeps descriptors in uniform registers."""
    me = MathThread(warp >> 2, warp & 3, cute.arch.lane_idx())
    begin(ctx, Role.MATH)
    compute_tiles(ctx, me, finish_tile)
    combine_after_tiles(ctx, warp * 32 + me.lane, warp, me.lane)


@cute.jit
def compute_tiles(ctx: Context, me: MathThread, finish: Finish):
    """All tiles of the CTA; `finish` takes a share's sums, and the place in the ring of the staging buffer, which it returns."""
    config = ctx.config
    tile, tiles = next_tile(ctx.first_tile)
    stamp(ctx, Activity.WAIT_COUNTS)
    stage = ctx.first_stage
    stores = Ring.start(1)
    while tile.valid():
        if cutlass.const_expr(config.decoded):
            if ctx.is_half(tile):
                stage, stores = compute(ctx, tile, DecodedShare.of(me, half=True), stage, stores, finish)
            else:
                share = DecodedAhead.of(me) if config.halves_decoding else DecodedShare.of(me, half=False, in_registers=True)
                stage, stores = compute(ctx, tile, share, stage, stores, finish)
        elif cutlass.const_expr(config.packed):
            stage, stores = compute(ctx, tile, PackedShare.of(me, config.block_m, ctx.shared("decoded")), stage, stores, finish)
        elif cutlass.const_expr(config.swap_ab):
            stage, stores = compute(ctx, tile, ColumnShare.of(me, config.block_m), stage, stores, finish)
        else:
            if ctx.is_half(tile):
                stage, stores = compute(ctx, tile, RowShare.of(me, half=True), stage, stores, finish)
            else:
                stage, stores = compute(ctx, tile, RowShare.of(me, half=False), stage, stores, finish)
        tile, tiles = next_tile(tiles)


@cute.jit
def compute(ctx: Context, tile: WorkTile, me: Share | PackedShare, stage: Stage, stores: Ring, finish: Finish) -> tuple[Stage, Ring]:
    """Computes a warpgroup's half of a tile.  Returns the ring's next stage, and the staging buffer's position with its next phase."""
    scales = weight_scales(ctx, tile, me) if ctx.config.weight_scales else None
    stage.wait_full()
    stamp(ctx, Activity.WAIT_STAGE, detail_of(tile))
    if cutlass.const_expr(ctx.config.scaled):
        sums, stage = me.multiply_tile(stage, scales, ctx.k_blocks_of(tile))
    else:
        sums, stage = accumulate_tile(stage, me, ctx.k_blocks_of(tile), ctx.config.problem.formats.activations.element)
    stamp(ctx, Activity.MULTIPLY, detail_of(tile))
    stores = finish(ctx, tile, me, sums, stores)
    stamp(ctx, Activity.EPILOGUE, detail_of(tile))
    return stage, stores


@cute.jit
def finish_tile(ctx: Context, tile: WorkTile, me: Share | PackedShare, sums: Any, stores: Ring):
    """Waits for the staging buffer, and runs the epilogue of the tile's phase."""
    # The staging buffer belongs to the store warp until it has read the last Linear1 tile.
    wait(ctx.barrier("store_empty"), stores.phase ^ 1)
    stamp(ctx, Activity.WAIT_STORE, detail_of(tile))
    if tile.phase == FC1:
        epilogue_of(ctx).finish_fc1(ctx, tile, me, with_bias(ctx, tile, me, FC1, sums))
        stores = stores.next()
    else:
        epilogue_of(ctx).finish_fc2(ctx, tile, me, with_bias(ctx, tile, me, FC2, sums))
    return stores


def weight_scales(ctx: Context, tile: WorkTile, me: Share | PackedShare) -> WeightScales:
    """Two scales per K block.  Linear1: those of the gate rows and of the up rows.  Linear2: those of the tile's first and last 128 rows;
    for a warpgroup that has 128 rows of its own, the scale of these rows twice."""
    config = ctx.config
    is_fc1 = tile.phase == FC1
    k_blocks = ctx.k_blocks_of(tile)
    row_blocks = select(is_fc1, Int32(2 * config.fc1_n_blocks), Int32(2 * config.fc2_n_blocks))
    up = config.fc1_n_blocks  # from a gate block to its up block
    own = me.group if me.has_own_weights else 0
    first = tile.expert * row_blocks + select(is_fc1, tile.n_block, tile.n_block * 2 + own)
    address = Int64(cutlass.select_(is_fc1, ctx.args.fc1_sf, ctx.args.fc2_sf))
    matrix = ScaleMatrix(address, k_blocks, max(config.fc1_k_blocks, config.fc2_k_blocks))
    second = first + select(is_fc1, Int32(up), Int32(0 if me.has_own_weights else 1))
    return WeightScales(tuple(matrix.load(row, me.lane) for row in (first, second)), is_fc1)


def with_bias(ctx: Context, tile: Any, me: Any, phase: int, acc: Any) -> Any:
    """The sums as they are in a layer without biases."""
    if not ctx.config.problem.biases:
        return acc
    return (columns_with_bias if ctx.config.swap_ab else rows_with_bias)(ctx, tile, me, phase, acc)

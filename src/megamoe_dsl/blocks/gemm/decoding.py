"""GEMMs on SM90 whose E2M1 weights stay packed up to the warps that decode them: math warps for themselves, with rows of A as the
wgmma's columns (blocks/sm90/packed_share.py), or decode warps for math warps (blocks/sm90/decode.py, decoded_share.py).

waits     work_tile_full, per tile; full, or codes_full and empty, per stage
signals   work_tile_empty, per tile; empty, or full and codes_empty, per warp and stage
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device.ring import Stage, TileQueue
from ...device.tma import wait_group_read
from ...hardware.packed_tile import PackedPart
from ..sm90.decode import decode_tile
from ..sm90.decoded_share import DecodedRows, DecodedShare
from ..sm90.math_thread import MathThread
from ..sm90.packed_share import PackedBlock, PackedShare
from ..tiles import each_tile
from . import store
from .context import GemmContext, GemmTile, next_tile


def decode_weights(ctx: GemmContext, warp: Int32) -> None:
    """One of the four warps."""
    me, table, part = MathThread(Int32(0), warp, cute.arch.lane_idx()), ctx.shared("decoded"), PackedPart(ctx.config.block_n)
    each_tile(ctx, None, ctx.first_stage, lambda ctx, tile, stage: decode_tile(stage, me, table, ctx.k_blocks, part))


@cute.jit
def multiply(ctx: GemmContext, warp: Int32, compute: Callable[..., Any]):
    """All math warps; `warp` counts within them and is uniform.  `compute` has a tile's first stage, which is full, and gives the ring's
    next stage, the next tile and the place of the one after it."""
    me = MathThread(warp >> 2, warp & 3, cute.arch.lane_idx())
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_read_stage
    while tile.valid():
        stage = ctx.of_tile(stage, tile)
        stage.wait_full()
        stage, tile, tiles = compute(ctx, tile, tiles, stage, me)
    # What TMA still reads is this CTA's.
    wait_group_read(0)


@cute.jit
def compute_columns(ctx: GemmContext, tile: GemmTile, tiles: TileQueue, stage: Stage, me: MathThread):
    """A tile whose rows of A are the wgmma's columns: sums to D, or to the CTA of the cluster that finishes them."""
    share = share_of(ctx, tile, me)
    sums, stage = share.multiply_tile(stage, None, ctx.k_blocks)
    following, tiles = next_tile(tiles)
    if cutlass.const_expr(ctx.config.split_k):
        store.finish_split(ctx, tile, share, sums, tiles)
    else:
        store.finish_columns(ctx, tile, share, sums)
    return stage, following, tiles


def share_of(ctx: GemmContext, tile: GemmTile, me: MathThread) -> PackedShare:
    """What a thread's warpgroup has of a tile: two blocks of 64 rows of B, or one."""
    config, table, part = ctx.config, ctx.shared("decoded"), PackedPart(ctx.config.block_n)
    if config.tile.chunks(False) > 1:
        return PackedShare.of(me, config.block_m, table, part)
    block = me.group if config.warpgroups > 1 else part.block_of_group(tile.n_block)
    return PackedBlock(me.group, me.warp, me.lane, config.block_m, table, part, block != 0)


@cute.jit
def compute_rows(ctx: GemmContext, tile: GemmTile, tiles: TileQueue, stage: Stage, me: MathThread):
    """A tile whose rows of A are the wgmma's rows."""
    if cutlass.const_expr(ctx.config.is_tall):
        stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedRows.of(me))
    elif cutlass.const_expr(ctx.config.half_tiles):
        if ctx.is_half(tile):
            stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedShare.of(me, half=True))
        else:
            stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedShare.of(me, half=False))
    else:
        stage, tile, tiles = compute(ctx, tile, tiles, stage, DecodedShare.of(me, half=False))
    return stage, tile, tiles


@cute.jit
def compute(ctx: GemmContext, tile: GemmTile, tiles: TileQueue, stage: Stage, me: DecodedShare):
    """A warpgroup's share of a tile.  The ring's next stage; the next tile, and the place of the one after it."""
    sums, stage = me.multiply_tile(stage, None, ctx.k_blocks)
    following, tiles = next_tile(tiles)
    for share, of_share in me.parts(sums):
        store.finish_rows(ctx, tile, share, of_share)
    return stage, following, tiles

"""The two loader warps of SM90: which rows, of which matrix, and when; the loops are blocks (blocks/sm90/load.py).

| role         | waits                                                                     | signals                     |
|---|---|---|
| load_tokens  | work_tile_full and an arrival count or mask per tile; empty per stage     | work_tile_empty per tile; full per stage |
| load_weights | work_tile_full per tile; empty per stage                                  | work_tile_empty per tile; full per stage |

Where weights are decoded, codes_empty and codes_full take the places of load_weights' empty and full.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.sm90 import load
from ....blocks.sm90.decode import CodeStage
from ....blocks.sm90.load import Fetch, OperandMaps, TokenTile, WeightTile
from ....blocks.trace import begin, detail_of, stamp
from ....device.stage import Stage
from ....layouts.activity import Activity, Role
from ....layouts.arith import select
from ....schedule import FC1
from ..arrival import wait_operands
from ..tile_scheduler import next_tile
from .context import Sm90Context, is_half_tile
from .maps import Sm90Map


@cute.jit
def load_tokens(ctx: Sm90Context):
    """TMA-A."""
    config, plan = ctx.config, ctx.config.smem
    begin(ctx, Role.TOKEN_LOADER)
    tile, tiles = next_tile(ctx.first_tile)
    stamp(ctx, Activity.WAIT_COUNTS)
    stage = ctx.first_stage
    while tile.valid():
        if cutlass.const_expr(ctx.operands_arrive):
            wait_operands(ctx, tile)
        stamp(ctx, Activity.WAIT_TOKENS, detail_of(tile))
        half = is_half_tile(ctx, tile)
        maps = OperandMaps(ctx.map(Sm90Map.TOKENS_PART, tile.phase), ctx.map(Sm90Map.TOKENS, tile.phase), config.part_tokens)
        tokens = Fetch.of(maps, ctx.place, half, tile.same_tokens)
        rows = select(half, config.part_tokens, config.block_m)
        scales = ctx.map(Sm90Map.SFA, tile.phase)
        row = config.first_row(tile.pool_block)
        k_blocks = ctx.k_blocks(tile)
        stage = load.load_tokens(stage, TokenTile(tokens, row, rows, plan.token_transaction(rows), scales), k_blocks)
        stamp(ctx, Activity.LOAD, detail_of(tile))
        tile, tiles = next_tile(tiles)


def first_weight_stage(ctx: Sm90Context) -> Stage:
    """Of the ring that the weight loader fills: that of operands, or one of codes in front of it."""
    return CodeStage.of(ctx.first_stage) if ctx.config.decoded else ctx.first_stage


@cute.jit
def load_weights(ctx: Sm90Context):
    """TMA-B: 256 weight rows by 128 of K are one contiguous tile; the tiles of a block's K follow one another."""
    config, plan, lines = ctx.config, ctx.config.smem, ctx.config.weight_lines
    begin(ctx, Role.WEIGHT_LOADER)
    tile, tiles = next_tile(ctx.first_tile)
    stamp(ctx, Activity.WAIT_COUNTS)
    stage = first_weight_stage(ctx)
    while tile.valid():
        same = tile.same_weights
        maps = OperandMaps(ctx.map(Sm90Map.WEIGHTS_PART, tile.phase), ctx.map(Sm90Map.WEIGHTS, tile.phase), lines // config.cluster)
        weights = Fetch.of(maps, ctx.place, False, same)
        k_blocks = ctx.k_blocks(tile)
        n_blocks = select(tile.phase == FC1, Int32(config.fc1_n_blocks), Int32(config.fc2_n_blocks))
        row = (tile.expert * n_blocks + tile.n_block) * k_blocks * lines
        stage = load.load_weights(stage, WeightTile(weights, row, lines, plan.fetched_weight_bytes), k_blocks)
        stamp(ctx, Activity.LOAD, detail_of(tile))
        tile, tiles = next_tile(tiles)

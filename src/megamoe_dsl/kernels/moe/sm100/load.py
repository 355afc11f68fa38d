"""The two loader warps: which rows, of which matrix, and when; the loops are blocks (blocks/sm100/load.py).

| role         | waits                                                                    | signals                                       |
|---|---|---|
| load_tokens  | work_tile_full and an arrival count or mask, per tile; empty, per stage  | work_tile_empty per tile; full of the even CTA |
| load_weights | work_tile_full, per tile; empty, per stage                               | work_tile_empty per tile; full of the even CTA |
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.sm100 import load
from ....blocks.sm100.load import PairOperand
from ....device.stamps import begin, detail_of, stamp
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....layouts.arith import select
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import FC1
from ..context import Context
from ..layouts.smem_plan import TILE_ROWS
from ..pool import wait_operands
from ..tile_scheduler import next_tile, read_ends
from .memory_plan import Sm100Map


@cute.jit
def load_tokens(ctx: Context):
    """TMA-A: each CTA of the pair loads its half of the tile's tokens and all of its scales."""
    config = ctx.config
    begin(ctx, Role.TOKEN_LOADER)
    block, tiles = next_tile(ctx.first_tile)
    stamp(ctx, Activity.WAIT_COUNTS)
    stage = ctx.first_stage
    while block.valid():
        if cutlass.const_expr(ctx.operands_arrive):
            wait_operands(ctx, block)
        stamp(ctx, Activity.WAIT_TOKENS, detail_of(block))
        tokens, scales = ctx.map(Sm100Map.TOKENS, block.phase), ctx.map(Sm100Map.SFA, block.phase)
        # Halves of what the MMA covers, not of block_m: the second CTA's rows start right after the first's.
        row = block.pool_block * config.block_m + ctx.cta_rank * (block.mma_n >> 1)
        num_bytes = config.smem.stage.token_transaction
        tile = PairOperand(tokens, scales, row, block.pool_block * config.sf_block_m, 0, config.k_block, num_bytes)
        stage = load.load_tokens(stage, tile, ctx.k_blocks(block))
        stamp(ctx, Activity.LOAD, detail_of(block))
        block, tiles = next_tile(tiles)
    read_ends(ctx, tiles)


@cute.jit
def load_weights(ctx: Context):
    """TMA-B: each CTA loads its 128 of the tile's 256 weight rows and their scales."""
    config, k_block = ctx.config, ctx.config.k_block
    begin(ctx, Role.WEIGHT_LOADER)
    block, tiles = next_tile(ctx.first_tile)
    stamp(ctx, Activity.WAIT_COUNTS)
    stage = ctx.first_stage
    while block.valid():
        weights, scales = ctx.map(Sm100Map.WEIGHTS, block.phase), ctx.map(Sm100Map.SFB, block.phase)
        k_blocks = ctx.k_blocks(block)
        channel = (block.n_block * CLUSTER + ctx.cta_rank) * BLOCK_N
        rows = select(block.phase == FC1, Int32(config.fc1_n_blocks * TILE_ROWS), Int32(config.fc2_n_blocks * TILE_ROWS))
        row, num_bytes = block.expert * rows + channel, config.smem.stage.weight_transaction
        tile = PairOperand(weights, scales, row, channel, block.expert * k_blocks * k_block.words, k_block, num_bytes)
        stage = load.load_weights(stage, tile, k_blocks)
        stamp(ctx, Activity.LOAD, detail_of(block))
        block, tiles = next_tile(tiles)
    read_ends(ctx, tiles)

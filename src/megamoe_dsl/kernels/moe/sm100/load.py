"""The two loader warps, which rows, of which matrix, and when, and the MMA warp; the loops are blocks (blocks/sm100).

| role         | waits                                                                    | signals                                       |
|---|---|---|
| load_tokens  | work_tile_full and an arrival count or mask, per tile; empty, per stage  | work_tile_empty per tile; full of the even CTA |
| load_weights | work_tile_full, per tile; empty, per stage                               | work_tile_empty per tile; full of the even CTA |
| issue_mma    | work_tile_full and acc_empty, per tile; full, per stage             | work_tile_empty, acc_full per tile; empty per stage |
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from ....blocks import tiles
from ....blocks.sm100 import load, mma
from ....blocks.sm100.load import PairOperand, TiledWeights
from ....blocks.sm100.mma import PairTile
from ....blocks.sm100.pair_stage import k_tiles
from ....device import tcgen05
from ....device.ring import Ring, Stage
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....layouts.arith import select
from ....schedule.fused_moe import FC1
from ..context import Context, WorkTile
from ..pool import wait_operands


def load_tokens(ctx: Context) -> None:
    """TMA-A: each CTA of the pair loads its half of the tile's tokens and all of its scales."""

    def fill(ctx: Context, block: WorkTile, stage: Stage) -> Any:
        config = ctx.config
        tokens, scales = ctx.map("tokens", block.phase), ctx.map("sfa", block.phase)
        # Halves of what the MMA covers, not of block_m: the second CTA's rows start right after the first's.
        row = block.pool_block * config.block_m + ctx.cta_rank * (block.mma_n >> 1)
        num_bytes = config.pair_stage.token_transaction
        tile = PairOperand(tokens, scales, row, block.pool_block * config.sf_block_m, 0, config.k_block, num_bytes)
        return load.load_tokens(stage, tile, ctx.k_blocks_of(block))

    tiles.load_tokens(ctx, ctx.first_stage, fill, wait_operands)


def load_weights(ctx: Context) -> None:
    """TMA-B: each CTA loads its 128 of the tile's 256 weight rows and their scales."""

    def fill(ctx: Context, block: WorkTile, stage: Stage) -> Any:
        config, k_block = ctx.config, ctx.config.k_block
        weights, scales = ctx.map("weights", block.phase), ctx.map("sfb", block.phase)
        k_blocks = ctx.k_blocks_of(block)
        n_block, is_fc1 = block.n_block * CLUSTER + ctx.cta_rank, block.phase == FC1
        n_blocks = select(is_fc1, Int32(config.fc1_n_blocks * CLUSTER), Int32(config.fc2_n_blocks * CLUSTER))
        tiles_of_k = select(is_fc1, Int32(k_tiles(config.problem.hidden, k_block)), Int32(k_tiles(config.problem.intermediate, k_block)))
        first, num_bytes = (block.expert * n_blocks + n_block) * tiles_of_k, config.pair_stage.weight_transaction
        tile = TiledWeights(weights, scales, first, n_block * BLOCK_N, block.expert * k_blocks * k_block.words, k_block, num_bytes)
        return load.load_weights(stage, tile, k_blocks)

    tiles.load_weights(ctx, ctx.first_stage, fill)


def issue_mma(ctx: Context) -> None:
    """The MMA warp of the even CTA."""
    mma.issue_mma(ctx, tile_of)


def tile_of(ctx: Context, block: WorkTile, acc: Ring) -> PairTile:
    """A tile as tensor cores see it."""
    config, tmem = ctx.config, ctx.config.tmem
    return PairTile(acc.index * config.block_m, tcgen05.instruction(config.mma, block.mma_n), 0, config.mma, config.k_block, tmem)

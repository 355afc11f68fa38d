"""The two loader warps: token tiles and weight tiles, with their scales, into the SMEM ring (article 4.2, 4.3).

| role         | waits                                                                       | signals                          |
|---|---|---|
| load_tokens  | counts, once; Linear1 arrival count or Linear2 arrival mask, per tile; empty, per stage | full of the even CTA, per stage |
| load_weights | counts, once; empty, per stage                                               | full of the even CTA, per stage |

The whole warp runs the loops and elects around the issue only: a loader in a single-lane branch costs half as many instructions again.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.walk import next_block
from ....device.mbarrier import LEADER, arrive_expect_cluster, wait
from ....device.ring import Ring
from ....device.tma import load_tile
from ....device.warp import elect
from ....layouts.arith import select
from ....schedule import FC1
from ..arrival import wait_operands
from ..layouts.tile import BLOCK_K
from ..table import start_walk
from .context import Sm100Context
from .maps import Map
from .tile import BLOCK_N, CLUSTER


@cute.jit
def load_tokens(ctx: Sm100Context):
    """TMA-A: each CTA of the pair loads its half of the tile's tokens and all of its scales."""
    config, plan = ctx.config, ctx.config.smem
    blocks = start_walk(ctx, Int32(0), 1)
    ring = Ring.start(config.num_stages)
    while blocks.valid():
        block = blocks.block()
        wait_operands(ctx, block)
        tokens, scales = ctx.map(Map.TOKENS, block.phase), ctx.map(Map.SFA, block.phase)
        # Halves of what the MMA covers, not of block_m: the second CTA's rows start right after the first's.
        row = block.pool_block * config.block_m + ctx.cta_rank * (block.mma_n >> 1)
        sf_row = block.pool_block * config.sf_block_m
        for k in cutlass.range(select(block.phase == FC1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks)), unroll=1):
            wait(ctx.barrier("empty", ring.index), ring.phase ^ 1)
            full = ctx.barrier("full", ring.index) & LEADER
            if elect():
                arrive_expect_cluster(full, plan.token_transaction)
                load_tile(ctx.shared("tokens", ring.index), tokens, full, k * BLOCK_K, row)
                load_tile(ctx.shared("sfa", ring.index), scales, full, sf_row, k)
            ring = ring.next()
        blocks = next_block(blocks)


@cute.jit
def load_weights(ctx: Sm100Context):
    """TMA-B: each CTA loads its 128 of the tile's 256 weight rows, unpacked to a byte per value, and their scales."""
    config, plan = ctx.config, ctx.config.smem
    blocks = start_walk(ctx, Int32(0), 1)
    ring = Ring.start(config.num_stages)
    while blocks.valid():
        block = blocks.block()
        weights, scales = ctx.map(Map.WEIGHTS, block.phase), ctx.map(Map.SFB, block.phase)
        is_fc1 = block.phase == FC1
        k_blocks = select(is_fc1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks))
        channel = (block.n_block * CLUSTER + ctx.cta_rank) * BLOCK_N
        row = block.expert * select(is_fc1, Int32(2 * config.problem.intermediate), Int32(config.problem.hidden)) + channel
        sf_k = block.expert * k_blocks
        for k in cutlass.range(k_blocks, unroll=1):
            wait(ctx.barrier("empty", ring.index), ring.phase ^ 1)
            full = ctx.barrier("full", ring.index) & LEADER
            if elect():
                arrive_expect_cluster(full, plan.weight_transaction)
                load_tile(ctx.shared("weights", ring.index), weights, full, k * BLOCK_K, row)
                load_tile(ctx.shared("sfb", ring.index), scales, full, channel, sf_k + k)
            ring = ring.next()
        blocks = next_block(blocks)

"""Linear2 tile on SM90: BF16 rows straight into the combine buffers of the tokens' ranks (article 4.5.5).

signals   nothing per tile: the rank barrier BEFORE_COMBINE covers all remote writes

A warpgroup transposes its 128 channels of 32 tokens at a time through SMEM, so that 16 lanes write 256 contiguous bytes of one token.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int64

from ....device.cast import pack_bf16
from ....device.matrix import store_transposed_b16
from ....device.memory import load_shared_v4, load_u64, store_v4
from ....device.warp import named_barrier
from ....layouts.barriers import NamedBarrier
from ....layouts.smem_plan_sm90 import STORE_TOKENS, TILE_ROWS
from ..table import Walk
from .context import MathThread, Sm90Context

ROWS_PER_STEP = 8  # tokens that the four warps write at a time, two per warp
HALF = 128  # bytes: a row of 128 BF16 lies in SMEM as two swizzled halves


@cute.jit
def finish_l2(ctx: Sm90Context, blocks: Walk, me: MathThread, acc: Any):
    """One tile, 32 tokens at a time."""
    config, plan = ctx.config, ctx.config.smem
    rows = min(config.block_m, STORE_TOKENS)
    row = blocks.pool_block * config.block_m
    cd = ctx.shared("cd", me.group * plan.l2_tile_bytes)
    # Writing: lane 8 k + c addresses channels 64 (k / 2) + 16 warp + 8 (k % 2).. of token c.
    matrix = me.lane >> 3
    chunk = (matrix >> 1) * 8 + me.warp * 2 + (matrix & 1)
    write = cd + (chunk >> 3) * (rows * HALF) + (me.lane & 7) * HALF + (((chunk ^ me.lane) & 7) << 4)
    # Reading: 16 lanes per token.
    own_row = me.warp * 2 + (me.lane >> 4)
    read = cd + ((me.lane >> 3) & 1) * (rows * HALF) + own_row * HALF + (((me.lane ^ own_row) & 7) << 4)
    channel_bytes = Int64(blocks.n_block * (2 * TILE_ROWS) + me.group * TILE_ROWS + (me.lane & 15) * 16)
    valid = blocks.valid_m
    for first in cutlass.range_constexpr(0, config.block_m, rows):
        if first < valid:
            # The last pass has been read by the warpgroup.
            named_barrier(me.group + NamedBarrier.EPILOGUE_GROUP, 128)
            for g in cutlass.range_constexpr(rows // 8):
                i = 4 * (first // 8 + g)
                words = [pack_bf16(acc[b][i + 2 * h], acc[b][i + 2 * h + 1]) for b in range(2) for h in range(2)]
                store_transposed_b16(write + g * (8 * HALF), words)
            metadata = ctx.at("token_src_metadata", row + own_row)
            destinations = [load_u64(metadata + (first + step) * 8) for step in range(0, rows, ROWS_PER_STEP)]
            named_barrier(me.group + NamedBarrier.EPILOGUE_GROUP, 128)
            for i, step in enumerate(range(0, rows, ROWS_PER_STEP)):
                if own_row + (first + step) < valid:
                    store_v4(destinations[i] + channel_bytes, load_shared_v4(read + step * HALF))

"""Linear1 tile: SwiGLU times the top-k weight, with one scale per 32 channels, into the Linear2 pool (article 4.5.4).  How the outputs are
rounded and stored differs by their element (outputs_e4m3.py, outputs_e2m1.py).

signals   fc2_arrival of the pool block: this CTA's 64 channels (release, after values and scales)

Which channels a thread has, and how two warps find a scale: activated_rows.py.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int64

from ....blocks.sm100.activated_rows import OUTPUTS, activate_group, joint_exponents, share_maxima
from ....blocks.sm100.epilogue_tile import fc1_scale
from ....device import cast
from ....device.memory import fence_async_shared, store_u8
from ....device.tcgen05 import load_columns
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....hardware.cta_pair import CLUSTER
from ....hardware.operand_tile import SF_ROW_BYTES, pool_sf_row
from ....layouts.arith import div
from ....schedule.fused_moe import FC1
from ..arrival import part_mark, signal_part
from ..bias import weights_of_pair
from ..context import Context
from .bias import load_biases, with_bias
from .maps import Sm100Map


@cute.jit
def finish_fc1(ctx: Context, tile):
    """One tile, `store_block_m` tokens at a time."""
    config, plan, block = ctx.config, ctx.config.smem, tile.block
    form, groups = OUTPUTS[config.problem.formats.hidden.element], config.store_block_m // 8
    n_block = block.n_block * CLUSTER + ctx.cta_rank
    row = block.pool_block * config.block_m
    cd = ctx.shared("cd", tile.group)
    pair = (tile.lane & 3) * 2  # first of this thread's two tokens in a group of 8
    maxima = ctx.shared("amax", tile.group, tile.warp, pair)
    other_maxima = ctx.shared("amax", tile.group, tile.warp ^ 1, pair)
    leader = (tile.warp == 0) & (tile.lane == 0)
    writes_scales = (tile.lane < 4) & ((tile.warp & 1) == 0)
    scale = fc1_scale(n_block, tile.warp)
    valid = block.valid_m
    biases = load_biases(ctx, tile, FC1, n_block)
    for first in cutlass.range(0, valid, config.store_block_m, unroll=1):
        weights = ctx.at("fc1_topk_weights", row + first + pair)
        outputs, peaks = [], []
        for g, sums in enumerate(load_columns(tile.column + first, groups)):
            v = with_bias(ctx, FC1, sums, biases, row + first + pair + 8 * g)
            w = weights_of_pair(ctx, weights + g * 32)
            values, most = activate_group(ctx, v, w)
            outputs.append(values)
            peaks.append(most)
        share_maxima(maxima, tile.lane, peaks)
        # The buffer that this pass fills was read by the store before the last one.
        if leader:
            wait_group_read(1)
        tile.sync_group()
        packed = []
        scales = ctx.at("fc2_sf", scale >> 2, pool_sf_row(block.pool_block, first + pair, config.sf_block_m)) + Int64(scale & 3)
        for g in cutlass.range_constexpr(groups):
            exponents = joint_exponents(other_maxima, g, peaks[g], form.largest)
            if writes_scales:
                for q in cutlass.range_constexpr(2):
                    store_u8(scales + (8 * g + q) * SF_ROW_BYTES, exponents[q])
            inverse = [cast.inverse_scale(e) for e in exponents]
            packed.append(form.pack([v * inverse[i & 1] for i, v in enumerate(outputs[g])]))
        buffer = cd + (div(first, config.store_block_m) & 1) * plan.fc1_tile_bytes
        form.store(buffer, tile.warp, tile.lane, packed)
        fence_async_shared()
        tile.sync_group()
        if leader:
            store_tile(ctx.map(Sm100Map.FC1_OUTPUT), buffer, n_block * plan.fc1_row_bytes, row + first)
            commit_group()
    if leader:
        wait_group(0)
        signal_part(ctx, ctx.at("fc2_arrival", block.pool_block), part_mark(ctx, n_block))

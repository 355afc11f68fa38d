"""Linear1 tile: SwiGLU times the top-k weight, with one scale per 32 channels, into the Linear2 pool (article 4.5.4).  How the outputs are
rounded and stored differs by their element (outputs_e4m3.py, outputs_e2m1.py).

signals   fc2_arrival of the pool block: this CTA's 64 channels (release, after values and scales)

A warp holds 32 accumulator rows, gate and up interleaved by 8: 16 output channels.  Thread t has channels t / 4 and 8 + t / 4 of the warp
for tokens 2 (t % 4) and 2 (t % 4) + 1 of every group of 8.  Two warps share a scale (32 channels), so they exchange their maxima in SMEM.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int64

from ....device import cast
from ....device.memory import fence_async_shared, store_u8
from ....device.ptx import emit, emit_to_many
from ....device.tcgen05 import load_columns
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....hardware.cta_pair import CLUSTER
from ....hardware.scale_factors import SF_ROW_BYTES, pool_sf_row
from ....layouts.arith import div
from ....recipe import E2M1, E4M3
from ....schedule import FC1
from ..arrival import part_mark, signal_part
from ..bias import weights_of_pair
from ..swiglu import activate
from .bias import load_biases, with_bias
from .context import Sm100Context
from .epilogue_tile import fc1_scale
from .maps import Sm100Map
from .outputs_e2m1 import E2m1Outputs
from .outputs_e4m3 import E4m3Outputs

OUTPUTS: dict[str, E4m3Outputs | E2m1Outputs] = {E4M3: E4m3Outputs(), E2M1: E2m1Outputs()}


@cute.jit
def finish_fc1(ctx: Sm100Context, tile):
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
            values = activate(ctx, v[0:2], v[2:4], w) + activate(ctx, v[4:6], v[6:8], w)
            outputs.append(values)
            peaks.append([cast.max_over_rows(cast.abs_max(values[q], values[2 + q])) for q in range(2)])
        if tile.lane < 4:
            for g in cutlass.range_constexpr(groups):
                emit("st.shared.v2.f32 [{}], {{{}, {}}};", maxima + g * 32, *peaks[g])
        # The buffer that this pass fills was read by the store before the last one.
        if leader:
            wait_group_read(1)
        tile.sync_group()
        packed = []
        scales = ctx.at("fc2_sf", scale >> 2, pool_sf_row(block.pool_block, first + pair, config.sf_block_m)) + Int64(scale & 3)
        for g in cutlass.range_constexpr(groups):
            theirs = emit_to_many([cutlass.Float32] * 2, "ld.shared.v2.f32 {{{}, {}}}, [{}];", other_maxima + g * 32)
            exponents = [cast.scale_exponent(cast.abs_max(peaks[g][q], theirs[q]), form.largest) for q in range(2)]
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

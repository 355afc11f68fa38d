"""Linear1 tile on SM90: SwiGLU times the top-k weight, E4M3 with one power-of-two scale per token and 128 channels (article 4.5.4).

signals   store_full: the tile is in SMEM and its scales are in the L2 pool; the store warp does the rest

A thread has gate (h = 0) and up (h = 1) of one channel per block of 64 rows.  Weight rows are ordered so that channel 32 g + 8 ... of the
tile's 128 lies where stmatrix puts it: 16-byte chunk 4 * warpgroup + warp, byte 2 * row + block (quant, `interleave_sm90`).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute


from ....device import cast
from ....device.matrix import store_transposed_b16
from ....device.mbarrier import arrive
from ....device.memory import fence_async_shared, load_f32x2, load_shared_f32x2, store_f32
from ....device.ptx import emit, emit_to
from ....device.warp import named_barrier, sync_warp
from ....layouts.barriers import NamedBarrier
from ....layouts.smem_plan_sm90 import MATH_WARPGROUPS
from ..epilogue_l1 import activate
from ..table import Walk
from .context import MathThread, Sm90Context

WARPS = 4 * MATH_WARPGROUPS
ROW_BYTES = 128


@cute.jit
def finish_l1(ctx: Sm90Context, blocks: Walk, me: MathThread, acc: Any):
    """The whole tile at once."""
    config = ctx.config
    groups = config.block_m // 8
    row = blocks.pool_block * config.block_m
    weights = ctx.at("l1_topk_weights", row + me.pair)
    outputs, peaks = [], []
    for g in cutlass.range_constexpr(groups):
        w = load_f32x2(weights + g * 32)
        values = [activate(ctx, b[4 * g : 4 * g + 2], b[4 * g + 2 : 4 * g + 4], w) for b in acc]
        outputs.append(values)
        peaks.append([cast.max_over_rows(cast.abs_max(values[0][q], values[1][q])) for q in range(2)])
    warp = me.group * 4 + me.warp
    if me.lane < 4:
        for g in cutlass.range_constexpr(groups):
            emit("st.shared.v2.f32 [{}], {{{}, {}}};", ctx.shared("amax", warp, me.pair) + g * 32, *peaks[g])
    named_barrier(NamedBarrier.EPILOGUE_ALL, 32 * WARPS)
    scales = ctx.at("l2_sf", blocks.n_block, row + me.pair)
    words = []
    for g in cutlass.range_constexpr(groups):
        theirs = [load_shared_f32x2(ctx.shared("amax", other, me.pair) + g * 32) for other in range(WARPS)]
        amax = [reduce(cast.abs_max, column) for column in zip(*theirs, strict=True)]
        exponents = [cast.scale_exponent(a) for a in amax]
        if (warp == 0) & (me.lane < 4):
            for q in cutlass.range_constexpr(2):
                store_f32(scales + g * 32 + q * 4, emit_to(cutlass.Float32, "mov.b32 {}, {};", exponents[q] << 23))
        inverse = [cast.inverse_scale(e) for e in exponents]
        # Bytes: token 0 of both blocks, token 1 of both blocks.
        words.append(cast.pack_e4m3(*(outputs[g][b][q] * inverse[q] for q in range(2) for b in range(2))))
    cd = ctx.shared("cd")
    for first in cutlass.range_constexpr(0, groups, 4):
        some = words[first : first + 4]
        token = (me.lane & (8 * len(some) - 1)) + 8 * first
        # SW128: the 16-byte chunk, XORed with the row's position among eight.
        store_transposed_b16(cd + token * ROW_BYTES + (((warp ^ token) & 7) << 4), some)
    fence_async_shared()
    sync_warp()
    if me.lane == 0:
        arrive(ctx.barrier("store_full"))



"""SwiGLU times the top-k weight from Linear1's BF16 to E4M3 or E2M1 with one UE8M0 scale per token and 32 channels, in the pool.

A lane has 16 channels: in fc1_out four runs of eight columns, gate and up of eight channels, then of the next eight.  Two lanes share a
scale.
"""

from __future__ import annotations

from functools import reduce

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .....blocks.swiglu import activate_bf16
from .....device import cast
from .....device.memory import load_constant_v4, store_u8, store_v2, store_v4
from .....device.warp import shuffle_xor_f32
from .....hardware.scale_factors import CHANNELS_PER_SCALE
from .....layouts.arith import div, minimum
from .....recipe import E2M1
from ...bias import weight_of
from ..context import StageContext

LANE_CHANNELS = 16
RUN_BYTES = 16  # eight columns of fc1_out


@cute.jit
def activate_scaled(ctx: StageContext, row: Int32, part: Int32):
    """Up to 512 channels of a token."""
    config, form = ctx.config, ctx.config.problem.formats.hidden
    lane, lanes = cute.arch.lane_idx(), config.problem.intermediate // LANE_CHANNELS
    sixteen = part * 32 + lane
    # Lanes past the last channels take part in the shuffle, with the last ones' values.
    first = ctx.result("fc1_out", row, minimum(sixteen, lanes - 1) * (2 * LANE_CHANNELS))
    weight = weight_of(ctx, row)
    runs = [load_constant_v4(first + run * RUN_BYTES) for run in range(4)]
    values = []
    for gates, ups in (runs[:2], runs[2:]):
        for gate, up in zip(gates, ups, strict=True):
            values += activate_bf16(ctx, gate, up, (weight, weight))
    peak = reduce(cast.abs_max, values)
    peak = cast.abs_max(peak, shuffle_xor_f32(peak, 1))
    packed = form.element == E2M1
    exponent = cast.scale_exponent(peak, cast.E2M1_MAX if packed else cast.E4M3_MAX)
    inverse = cast.inverse_scale(exponent)
    scaled = [value * inverse for value in values]
    if sixteen < lanes:
        address = ctx.at("fc2_acts", row, sixteen * form.row_bytes(LANE_CHANNELS))
        if cutlass.const_expr(packed):
            store_v2(address, cast.pack_e2m1(*scaled[:8]), cast.pack_e2m1(*scaled[8:]))
        else:
            store_v4(address, tuple(cast.pack_e4m3(*scaled[i : i + 4]) for i in range(0, LANE_CHANNELS, 4)))
        if (lane & 1) == 0:
            scale = sixteen * LANE_CHANNELS // CHANNELS_PER_SCALE
            pool_block = div(row, config.block_m)
            word = ctx.at("fc2_sf", scale >> 2, config.sf_row(pool_block, row - pool_block * config.block_m))
            store_u8(word + Int64(scale & 3), exponent)

"""Epilogues of gate and up as `epilogue.finish_gate_up`, for other formats of what Linear2 takes.

BF16, for number formats whose scales need a factor of values that nobody knows yet: 64 channels of a pass of 32 rows, without scales.

NVFP4 with a known factor (blocks/sm100/nvfp4.py): a scale for each row and a warp's 16 channels.
"""

from __future__ import annotations

from typing import cast

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64

from ....device.memory import fence_async_shared, load_f32, store_u8
from ....device.tcgen05 import load_columns
from ....device.tma import wait_group_read
from ....recipe import BF16
from ...sm100.epilogue_tile import FC1_CHANNELS, HALF_BYTES, HALF_CHANNELS, PASS_ROWS
from ...sm100.nvfp4 import GateUpFactors, packed_pass, row_of_lane
from ...sm100.results import OUTPUTS, ResultPart, activate_channels
from ..arguments import HiddenFactorArguments
from ..context import GemmContext, GemmTile
from ..tile import WARPS_PER_GROUP
from .epilogue import load_factor, scatter_pass, store_preactivations, with_factor
from .load import first_gate


@cute.jit
def finish_gate_up_bf16(ctx: GemmContext, tile: GemmTile, part: ResultPart):
    """64 channels, activated, rounded once."""
    problem, groups, factor, form = ctx.config.problem, PASS_ROWS // 8, load_factor(ctx, tile), OUTPUTS[BF16]
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        sums = [with_factor(ctx, one, factor) for one in load_columns(part.column + first, groups)]
        if cutlass.const_expr(problem.preactivations):
            store_preactivations(ctx, tile, part, first, sums)
        packed = [form.pack(activate_channels(ctx, one, (Float32(1.0),) * 2, first_gate(problem))) for one in sums]
        wait_group_read(0)
        part.sync_group()
        form.store(part.staging, part.warp, part.lane, packed)
        fence_async_shared()
        part.sync_group()
        scatter_pass(ctx, tile, part, first, HALF_BYTES, part.n_block * HALF_CHANNELS, 1)


def load_factors(ctx: GemmContext, tile: GemmTile) -> GateUpFactors:
    """Reads the three factors of the tile's expert from global memory."""
    args, place = cast(HiddenFactorArguments, ctx.args), Int64(tile.group) * 4
    return GateUpFactors(load_factor(ctx, tile), load_f32(args.up_factors + place), load_f32(args.hidden_factors + place))


@cute.jit
def finish_gate_up_nvfp4(ctx: GemmContext, tile: GemmTile, part: ResultPart):
    """64 channels, activated and with a scale for each row and 16 of them."""
    problem, lane, factors = ctx.config.problem, part.lane, load_factors(ctx, tile)
    form, groups, row_bytes = OUTPUTS[problem.hidden.element], PASS_ROWS // 8, problem.hidden.row_bytes(FC1_CHANNELS)
    own = row_of_lane(lane)
    per_row = problem.hidden.scales_of(problem.d_columns)
    scales = ctx.args.d_sf + Int64(tile.row + own) * per_row + part.n_block * WARPS_PER_GROUP + part.warp
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        sums = [factors.of_sums(one, first_gate(problem)) for one in load_columns(part.column + first, groups)]
        if cutlass.const_expr(problem.preactivations):
            store_preactivations(ctx, tile, part, first, sums)
        passed = [activate_channels(ctx, one, (Float32(1.0),) * 2, first_gate(problem)) for one in sums]
        code, divisor = factors.scale(passed, lane)
        if first + own < tile.valid_m:
            store_u8(scales + Int64(first) * per_row, code)
        packed = packed_pass(passed, divisor, lane)
        wait_group_read(0)
        part.sync_group()
        form.store(part.staging, part.warp, lane, packed)
        fence_async_shared()
        part.sync_group()
        scatter_pass(ctx, tile, part, first, row_bytes, part.n_block * row_bytes, 1)

"""Epilogues of gate and up as `epilogue.finish_gate_up`, for other formats of what Linear2 takes.

BF16, for number formats whose scales need a factor of values that nobody knows yet: 64 channels of a pass of 32 rows, without scales.

NVFP4, E2M1 with a UE4M3 scale for each row and 16 channels, and a known factor: the 16 channels of a warp are those of a scale, so that
no two warps exchange maxima.  A scale takes divisions: a lane finds that of one row of the 32, and the lanes that have the row's values
ask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64

from ....device.cast import abs_max
from ....device.memory import fence_async_shared, load_f32, store_u8
from ....device.tcgen05 import load_columns
from ....device.tma import wait_group_read
from ....device.warp import shuffle_f32, shuffle_xor_f32
from ....layouts.arith import select
from ....recipe import BF16
from ...quantize import divided, ue4m3_scale
from ...sm100.epilogue_tile import FC1_CHANNELS, HALF_BYTES, HALF_CHANNELS, PASS_ROWS
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


COLUMNS = 4  # lanes with other rows; the eight with the same column have other channels of the same rows


@dataclass(frozen=True)
class GateUpFactors:
    """The factors of an expert, FP32: `gate` and `up` multiply its sums, and `hidden` is that of the E2M1 rows they become."""

    gate: Any
    up: Any
    hidden: Any

    def of_sums(self, sums: Sequence[Any], gates: int) -> list[Any]:
        """Each of a thread's, rounded once; `gates` as of `activate_channels`."""
        return [value * (self.gate if i & 2 == gates else self.up) for i, value in enumerate(sums)]


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
        peaks = [abs_max(values[q], values[2 + q]) for values in passed for q in range(2)]
        code, divisor = ue4m3_scale(largest_of_row(peaks, lane), factors.hidden)
        if first + own < tile.valid_m:
            store_u8(scales + Int64(first) * per_row, code)
        packed = []
        for g, values in enumerate(passed):
            divisors = [shuffle_f32(divisor, (2 * g + q) * COLUMNS + (lane & (COLUMNS - 1))) for q in range(2)]
            packed.append(form.pack([divided(value, divisors[i & 1]) for i, value in enumerate(values)]))
        wait_group_read(0)
        part.sync_group()
        form.store(part.staging, part.warp, lane, packed)
        fence_async_shared()
        part.sync_group()
        scatter_pass(ctx, tile, part, first, row_bytes, part.n_block * row_bytes, 1)


def row_of_lane(lane: Any) -> Any:
    """A lane finds the scale of this row of a pass: bits 4 and 3 select eight rows, bits 1 and 0 two of these, and bit 2 one of the two."""
    return (lane >> 3) * 8 + (lane & (COLUMNS - 1)) * 2 + ((lane >> 2) & 1)


def largest_of_row(peaks: Sequence[Any], lane: Any) -> Any:
    """The largest magnitude of `row_of_lane`: of its eight rows' maxima a lane sends half to another lane of its column, which keeps those,
    then half of what is left, until it has one of all."""
    left, distance = list(peaks), len(peaks) // 2 * COLUMNS
    while distance >= COLUMNS:
        half, upper = len(left) // 2, (lane & distance) != 0
        kept = [select(upper, left[half + i], left[i]) for i in range(half)]
        sent = [select(upper, left[i], left[half + i]) for i in range(half)]
        left = [abs_max(mine, shuffle_xor_f32(other, distance)) for mine, other in zip(kept, sent, strict=True)]
        distance //= 2
    return left[0]

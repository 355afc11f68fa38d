"""Epilogue warps: every accumulator to D, a pass of 32 rows at a time, by scatter4.

waits     work_tile_full and acc_full, per tile
signals   work_tile_empty and acc_empty of the even CTA, per tile

Rows lie wherever the result's layout says, and those of a tile end anywhere: scatter4 takes a row of D for each row, and leaves out those
that D does not have, so that no row of the expert after a tile's is touched.  Two warpgroups take alternate passes of a tile, or each has a
consumer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from .....device import cast
from .....device.memory import fence_async_shared, store_u8
from .....device.tcgen05 import load_columns
from .....device.tma import wait_group_read
from .....hardware.operand_tile import CHANNELS_PER_SCALE
from ....sm100.activated_rows import OUTPUTS, activate_group, joint_exponents, share_maxima
from ....sm100.epilogue_tile import FC1_CHANNELS, fc1_scale
from ....sm100.result_tile import HALF_BYTES, HALF_CHANNELS, PASS_ROWS, write_address
from ....sm100.results import ResultPart, stage_pass
from ...context import GemmContext
from ...sm100.epilogue import FIRST_BARRIER
from ...sm100.factor import load_factor, with_factor
from ...work_tile import GemmTile
from .gate_up import first_gate
from .preactivations import store_preactivations
from .scatter import scatter_pass


@dataclass(frozen=True)
class ExpertSums:
    """Sums as they are, or times the factor of their expert."""

    ctx: GemmContext
    factor: Any

    def finished(self, first: Any, sums: Sequence[Any]) -> Sequence[Any]:
        return with_factor(self.ctx, sums, self.factor)


@cute.jit
def finish_results(ctx: GemmContext, tile: GemmTile, part: ResultPart):
    """BF16, 128 columns of D."""
    write, rows = write_address(part.staging, part.warp, part.lane, PASS_ROWS), ExpertSums(ctx, load_factor(ctx, tile))
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        wait_group_read(0)
        stage_pass(part, rows, write, first)
        fence_async_shared()
        part.sync_group()
        scatter_pass(ctx, tile, part, first, HALF_BYTES, part.n_block * (2 * HALF_CHANNELS), 2)


@cute.jit
def finish_gate_up(ctx: GemmContext, tile: GemmTile, part: ResultPart):
    """64 channels, activated and with a scale for each row and 32 of them."""
    problem, lane, warp = ctx.config.problem, part.lane, part.warp
    form, groups = OUTPUTS[problem.hidden.element], PASS_ROWS // 8
    pair = (lane & 3) * 2  # first of this thread's two rows in a group of 8
    maxima, others = (ctx.shared("amax", part.group, one, pair) for one in (warp, warp ^ 1))
    scale, per_row = fc1_scale(part.n_block, warp), problem.d_columns // CHANNELS_PER_SCALE
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        sums = load_columns(part.column + first, groups)
        if cutlass.const_expr(problem.preactivations):
            store_preactivations(ctx, tile, part, first, sums)
        passed = [activate_group(ctx, v, (Float32(1.0),) * 2, first_gate(problem)) for v in sums]
        share_maxima(maxima, lane, [peaks for _, peaks in passed])
        wait_group_read(0)
        part.sync_group()
        packed = []
        for g, (values, peaks) in enumerate(passed):
            exponents = joint_exponents(others, g, peaks, form.largest)
            for q, exponent in enumerate(exponents):
                row = first + 8 * g + pair + q
                store_scale(ctx, tile, row, (lane < 4) & ((warp & 1) == 0), per_row, scale, exponent)
            inverse = [cast.inverse_scale(one) for one in exponents]
            packed.append(form.pack([value * inverse[i & 1] for i, value in enumerate(values)]))
        form.store(part.staging, warp, lane, packed)
        fence_async_shared()
        part.sync_group()
        row_bytes = problem.hidden.row_bytes(FC1_CHANNELS)
        scatter_pass(ctx, tile, part, first, row_bytes, part.n_block * row_bytes, 1)


@cute.jit
def store_scale(ctx: GemmContext, tile: GemmTile, row: Int32, own: Any, per_row: cutlass.Constexpr[int], scale: Int32, exponent: Int32):
    """Stores byte `scale` of the `per_row` that row `row` of the tile has in D's scales, from threads with `own`, if the row is valid."""
    if own & (row < tile.valid_m):
        store_u8(ctx.args.d_sf + (Int64(tile.row + row) * per_row + scale), exponent)


@cute.jit
def finish_tile(
    ctx: GemmContext,
    tile: GemmTile,
    column: Int32,
    group: Int32,
    warp: Int32,
    lane: Int32,
    finish_part: cutlass.Constexpr[Callable[..., Any]],
):
    """A warp's part of a tile; its sums begin at TMEM column `column`.  Of two consumers a warpgroup has all passes of its own."""
    config, every, first = ctx.config, ctx.config.epilogue_warpgroups, group * PASS_ROWS
    n_block = tile.n_block * config.cluster + ctx.cta_rank
    if cutlass.const_expr(config.consumers > 1):
        n_block, column, every, first = n_block * config.consumers + group, column + group * config.block_m, 1, Int32(0)
    shape = (tile.valid_m, n_block, PASS_ROWS, FIRST_BARRIER, every, first)
    finish_part(ctx, tile, ResultPart(column, ctx.shared("cd", group), group, warp, lane, *shape))

"""Epilogue of gate and up whose product stays BF16: of number formats whose scales need a factor of values that nobody knows yet.

As `epilogue.finish_gate_up`, without maxima and scales: 64 channels of a pass of 32 rows, in one half of the tile of results.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from .....device.cast import pack_bf16
from .....device.memory import fence_async_shared, store_transposed_b16
from .....device.tcgen05 import load_columns
from .....device.tma import wait_group_read
from ....sm100.activated_rows import activate_channels
from ....sm100.result_tile import HALF_BYTES, HALF_CHANNELS, PASS_ROWS, chunk_address
from ....sm100.results import ResultPart
from ...context import GemmContext
from ...sm100.factor import load_factor, with_factor
from ...work_tile import GemmTile
from .gate_up import first_gate
from .preactivations import store_preactivations
from .scatter import scatter_pass

RUNS = 2
"""Of eight channels, that a warp has of a pass."""


@cute.jit
def finish_gate_up_bf16(ctx: GemmContext, tile: GemmTile, part: ResultPart):
    """64 channels, activated, rounded once."""
    problem, groups, factor = ctx.config.problem, PASS_ROWS // 8, load_factor(ctx, tile)
    matrix = part.lane >> 3  # of the four of a store: a run of channels of eight rows, then of the next eight
    write = chunk_address(part.staging, part.warp * RUNS + (matrix & 1), part.lane, PASS_ROWS) + (matrix >> 1) * (8 * HALF_BYTES)
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        sums = [with_factor(ctx, one, factor) for one in load_columns(part.column + first, groups)]
        if cutlass.const_expr(problem.preactivations):
            store_preactivations(ctx, tile, part, first, sums)
        words: list[Any] = []
        for one in sums:
            values = activate_channels(ctx, one, (Float32(1.0),) * 2, first_gate(problem))
            words += [pack_bf16(values[2 * run], values[2 * run + 1]) for run in range(RUNS)]
        wait_group_read(0)
        part.sync_group()
        for g in cutlass.range_constexpr(0, groups, 2):
            store_transposed_b16(write + g * (8 * HALF_BYTES), words[RUNS * g : RUNS * (g + 2)])
        fence_async_shared()
        part.sync_group()
        scatter_pass(ctx, tile, part, first, HALF_BYTES, part.n_block * HALF_CHANNELS, 1)

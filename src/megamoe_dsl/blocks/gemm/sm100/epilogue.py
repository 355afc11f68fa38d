"""Epilogue warps: every accumulator to D.

waits     work_tile_full and acc_full, per tile
signals   work_tile_empty and acc_empty of the even CTA, per tile

BF16 goes through SMEM, a pass of 32 rows at a time (blocks/sm100/results.py), FP32 from registers to memory.  Two warpgroups take
alternate passes of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import LEADER, arrive_cluster, wait
from ....device.memory import store_v4
from ....device.ring import Ring
from ....device.tcgen05 import fence_after_sync, fence_before_sync, load_columns
from ....device.warp import sync_warp
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....layouts.records import Activity, Role
from ...sm100.result_tile import PASS_ROWS
from ...sm100.results import ResultPart, store_results
from ..context import GemmContext
from ..store import store_value
from ..work_tile import GemmTile, next_tile
from .factor import load_factor, with_factor

FIRST_BARRIER = 1  # named, of the warpgroups: 0 is the whole CTA's


@dataclass(frozen=True)
class ResultsOfTile:
    """Rows of D of a tile, for a lane that has eight columns from `column` on."""

    ctx: GemmContext
    tile: GemmTile
    column: Int32
    factor: Any

    def begin(self, first: Any, own_row: Any) -> Any:
        return self.ctx.args.d + Int64(self.tile.row + first + own_row) * self.row_bytes

    def finished(self, first: Any, sums: Sequence[Any]) -> Sequence[Any]:
        """Times the factor, if there is one."""
        return with_factor(self.ctx, sums, self.factor)

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        return [begun + step * self.row_bytes for step in steps]

    def has(self, row: Any) -> Any:
        """Whether the tile has the row, and D the columns: 8 of them are all there or not."""
        return (row < self.tile.valid_m) & (self.column < self.ctx.config.problem.n)

    def send(self, place: Any, first: Any, lane: Any, words: Any) -> None:
        store_v4(place, words)

    @property
    def value_bytes(self) -> int:
        return self.ctx.config.problem.output_bytes

    @property
    def row_bytes(self) -> int:
        return self.ctx.config.problem.n * self.value_bytes


@cute.jit
def store_tile_of(
    ctx: GemmContext,
    tile: GemmTile,
    column: Int32,
    group: Int32,
    warp: Int32,
    lane: Int32,
    results: cutlass.Constexpr[type[ResultsOfTile]] = ResultsOfTile,
):
    """A warp's part of a tile, whose sums begin at TMEM column `column`, to D; or BF16 to where `results` says."""
    config, n_block, factor = ctx.config, tile.n_block * CLUSTER + ctx.cta_rank, load_factor(ctx, tile)
    if cutlass.const_expr(config.epilogue.staged):
        rows = results(ctx, tile, n_block * BLOCK_N + (lane & 15) * 8, factor)
        staging, every = ctx.shared("cd", group), config.epilogue_warpgroups
        shape = (tile.valid_m, n_block, PASS_ROWS, FIRST_BARRIER, every, group * PASS_ROWS)
        store_results(ResultPart(column, staging, group, warp, lane, *shape), rows)
    else:
        store_floats(ctx, tile, factor, column, group, ctx.cta_rank * BLOCK_N + warp * 32 + (lane >> 2), (lane & 3) * 2)


@cute.jit
def epilogue(ctx: GemmContext, thread: Int32, finish: cutlass.Constexpr[Callable[..., Any]] = store_tile_of):
    """All epilogue warps; `thread` counts within them.  `finish` is what a warp does with a tile."""
    config = ctx.config
    group, warp, lane = thread >> 7, (thread >> 5) & 3, thread & 31
    ctx.begin(Role.EPILOGUE)
    tile, tiles = next_tile(ctx.first_tile)
    acc = Ring.start(config.tmem.accumulators)
    while tile.valid():
        wait(ctx.barrier("acc_full", acc.index), acc.phase)
        fence_after_sync()
        ctx.stamp(Activity.WAIT_STAGE, tile)
        finish(ctx, tile, config.tmem.accumulator(acc.index), group, warp, lane)
        fence_before_sync()
        sync_warp()
        if lane == 0:
            arrive_cluster(ctx.barrier("acc_empty", acc.index) & LEADER)
        ctx.stamp(Activity.EPILOGUE, tile)
        acc = acc.next()
        tile, tiles = next_tile(tiles)


@cute.jit
def store_floats(ctx: GemmContext, tile: GemmTile, factor: Any, column: Int32, group: Int32, x: Int32, pair: Int32):
    """A warp's 32 columns of D, FP32; a thread has those of the tile from `x` on, 8 apart, of rows `pair` and the next of every 8."""
    every = PASS_ROWS * ctx.config.epilogue_warpgroups
    for first in cutlass.range(group * PASS_ROWS, tile.valid_m, every, unroll=1):
        for g, values in enumerate(load_columns(column + first, PASS_ROWS // 8)):
            for i, value in enumerate(with_factor(ctx, values, factor)):
                store_value(ctx, tile, first + 8 * g + pair + (i & 1), x + 8 * (i >> 1), value)

"""Epilogue warps: every accumulator to D, tile by tile (blocks/sm100/results.py).

BF16 goes through SMEM, a pass of 32 rows at a time, FP32 from registers to memory.  Two warpgroups take alternate passes of a tile, or each
has a consumer's.  Rows of experts lie wherever the result's layout says: scatter4 takes a row of D for each, and leaves out those beyond a
tile's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.memory import fence_async_shared, load_f32, store_v4
from ....device.ring import Ring
from ....device.tcgen05 import load_columns
from ....device.tma import commit_group, scatter_rows, wait_group_read
from ....hardware.cta_pair import BLOCK_N
from ....layouts.arith import select
from ....layouts.records import Role
from ...sm100.epilogue_tile import HALF_BYTES, HALF_CHANNELS, PASS_ROWS, PASS_WARPGROUPS, write_address
from ...sm100.results import EpilogueThread, ResultPart, finish_tiles, stage_pass, store_results
from ..context import GemmContext, GemmTile
from ..store import store_value
from ..tile import WARPS_PER_GROUP


def load_factor(ctx: GemmContext, tile: GemmTile) -> Any:
    """Reads the FP32 factor of the tile's group; formats without factors have 1.0."""
    if not ctx.config.problem.formats.weights.factor:
        return 1.0
    return load_f32(ctx.args.factors + Int64(tile.group) * 4)


def with_factor(ctx: GemmContext, sums: Sequence[Any], factor: Any) -> Sequence[Any]:
    return [value * factor for value in sums] if ctx.config.problem.formats.weights.factor else sums


ROWS = 4  # of a scatter4
WARP_ROWS = PASS_ROWS // WARPS_PER_GROUP


@cute.jit
def scatter_pass(
    ctx: GemmContext,
    tile: GemmTile,
    part: ResultPart,
    first: Int32,
    row_bytes: cutlass.Constexpr[int],
    x: Int32,
    parts: cutlass.Constexpr[int],
):
    """A warp's eight rows of a pass that lies in the warpgroup's tile, rows of so many bytes in one part or two: a thread has four."""
    fours, half = part.warp * (WARP_ROWS // ROWS) + part.lane // parts, part.lane % parts
    own = first + fours * ROWS
    if (part.lane < WARP_ROWS // ROWS * parts) & (own < tile.valid_m):
        places = [select(own + i < tile.valid_m, tile.row + own + i, ctx.args.d_rows) for i in range(ROWS)]
        scatter_rows(ctx.maps.d, part.staging + (half * PASS_ROWS + fours * ROWS) * row_bytes, x + half * HALF_CHANNELS, *places)
        commit_group()


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
        return with_factor(self.ctx, sums, self.factor)

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        return [begun + step * self.row_bytes for step in steps]

    def has(self, row: Any) -> Any:
        """Whether the tile has the row, and D the columns: 8 of them are all there or not."""
        return (row < self.tile.valid_m) & (self.column < self.ctx.config.problem.d_columns)

    def send(self, place: Any, first: Any, lane: Any, words: Any) -> None:
        store_v4(place, words)

    @property
    def value_bytes(self) -> int:
        return self.ctx.config.problem.output_bytes

    @property
    def row_bytes(self) -> int:
        return self.ctx.config.problem.d_columns * self.value_bytes


def part_of(ctx: GemmContext, tile: GemmTile, me: EpilogueThread, column: Any) -> ResultPart:
    """A warpgroup's part of a tile, whose sums begin at TMEM column `column`.  Of two consumers a warpgroup has all passes of its own."""
    config, every, first = ctx.config, PASS_WARPGROUPS, me.group * PASS_ROWS
    n_block = tile.n_block * config.cluster + ctx.cta_rank
    if config.consumers > 1:
        n_block, column, every, first = n_block * config.consumers + me.group, column + me.group * config.block_m, 1, Int32(0)
    shape = (tile.valid_m, n_block, PASS_ROWS, FIRST_BARRIER, every, first)
    return ResultPart(me.group, me.warp, me.lane, column, ctx.shared("cd", me.group), *shape)


@cute.jit
def store_tile_of(
    ctx: GemmContext,
    tile: GemmTile,
    me: EpilogueThread,
    column: Int32,
    results: cutlass.Constexpr[type[ResultsOfTile]] = ResultsOfTile,
):
    """A warp's part of a tile to D; or BF16 to where `results` says."""
    factor = load_factor(ctx, tile)
    if cutlass.const_expr(ctx.config.epilogue.staged):
        part = part_of(ctx, tile, me, column)
        store_results(part, results(ctx, tile, part.n_block * BLOCK_N + (me.lane & 15) * 8, factor))
    else:
        store_floats(ctx, tile, factor, column, me.group, ctx.cta_rank * BLOCK_N + me.warp * 32 + (me.lane >> 2), (me.lane & 3) * 2)


def epilogue(ctx: GemmContext, thread: Any, finish: Callable[..., Any] = store_tile_of) -> None:
    """All epilogue warps; `thread` counts within them.  `finish` is what a warp does with a tile."""
    me, (tile, tiles) = EpilogueThread.of(thread), ctx.take_first(Role.EPILOGUE)
    finish_tiles(ctx, tile, tiles, me, Ring.start(ctx.config.tmem.accumulators), 0, finish)


@cute.jit
def store_floats(ctx: GemmContext, tile: GemmTile, factor: Any, column: Int32, group: Int32, x: Int32, pair: Int32):
    """A warp's 32 columns of D, FP32; a thread has those of the tile from `x` on, 8 apart, of rows `pair` and the next of every 8."""
    for first in cutlass.range(group * PASS_ROWS, tile.valid_m, PASS_WARPGROUPS * PASS_ROWS, unroll=1):
        for g, values in enumerate(load_columns(column + first, PASS_ROWS // 8)):
            for i, value in enumerate(with_factor(ctx, values, factor)):
                store_value(ctx, tile, first + 8 * g + pair + (i & 1), x + 8 * (i >> 1), value)


@cute.jit
def finish_results(ctx: GemmContext, tile: GemmTile, me: EpilogueThread, column: Int32):
    """BF16, 128 columns of D."""
    part = part_of(ctx, tile, me, column)
    write, rows = write_address(part.staging, part.warp, part.lane, PASS_ROWS), ResultsOfTile(ctx, tile, Int32(0), load_factor(ctx, tile))
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        wait_group_read(0)
        stage_pass(part, rows, write, first)
        fence_async_shared()
        part.sync_group()
        scatter_pass(ctx, tile, part, first, HALF_BYTES, part.n_block * (2 * HALF_CHANNELS), 2)

"""The epilogue of gate and up on SM100: stored in BF16 where a backward pass needs them, in columns as B has rows; activated, and quantized
unless D is BF16.  NVFP4 takes a known factor; without one activated channels stay BF16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....device.cast import pack_bf16
from ....device.memory import load_f32, load_shared_v4, store_shared_u32, store_transposed_b16, store_v4
from ....device.tma import wait_group_read
from ....layouts.arith import select
from ...sm100.epilogue_tile import FC1_CHANNELS, HALF_BYTES, HALF_CHANNELS, chunk_address, fc1_scale, read_address, read_row
from ...sm100.outputs import GateUpFactors, activate_channels, finish_passes
from ...sm100.results import ROWS_PER_STEP, EpilogueThread, ResultPart
from ..context import GemmContext, GemmTile
from ..problem import INTERLEAVED
from .epilogue import load_factor, part_of, scatter_pass, with_factor
from .load import first_gate


@dataclass(frozen=True)
class GateUpOfTile:
    """A warpgroup's part of a tile on its way to rows of D, which scatter4 takes.  Its sums are scaled by `factor`, or gate's and up's."""

    ctx: GemmContext
    tile: GemmTile
    part: ResultPart
    factor: Any
    factors: GateUpFactors | None

    def activated(self, first: Any, sums: Sequence[Sequence[Any]]) -> list[list[Any]]:
        ctx, problem, gates = self.ctx, self.ctx.config.problem, first_gate(self.ctx.config.problem)
        found = [with_factor(ctx, one, self.factor) if self.factors is None else self.factors.of_sums(one, gates) for one in sums]
        if problem.preactivations:
            store_preactivations(ctx, self.tile, self.part, first, found)
        return [activate_channels(ctx, one, (Float32(1.0),) * 2, gates) for one in found]

    def buffer(self, first: Any) -> Any:
        wait_group_read(0)
        self.part.sync_group()
        return self.part.staging

    def has(self, row: Any) -> Any:
        return row < self.tile.valid_m

    def scale(self, row: Any) -> tuple[Any, int]:
        hidden = self.ctx.config.problem.hidden
        per_row, index = hidden.scales_of(self.ctx.config.problem.d_columns), fc1_scale(self.part.n_block, self.part.warp, hidden.channels)
        return self.ctx.args.d_sf + (Int64(self.tile.row + row) * per_row + index), per_row

    def send(self, first: Any, buffer: Any) -> None:
        row_bytes = self.ctx.config.problem.hidden.row_bytes(FC1_CHANNELS)
        scatter_pass(self.ctx, self.tile, self.part, first, row_bytes, self.part.n_block * row_bytes, 1)


def finish_gate_up(ctx: GemmContext, tile: GemmTile, me: EpilogueThread, column: Any) -> None:
    """64 channels of every row."""
    part, hidden, factor, factors = part_of(ctx, tile, me, column), ctx.config.problem.hidden, load_factor(ctx, tile), None
    if hidden.factor:
        args, place = ctx.args, Int64(tile.group) * 4
        factors = GateUpFactors(factor, load_f32(args.up_factors + place), load_f32(args.hidden_factors + place))
    maxima = [ctx.shared("amax", part.group, warp, (part.lane & 3) * 2) for warp in (part.warp, part.warp ^ 1)]
    finish_passes(part, GateUpOfTile(ctx, tile, part, factor, factors), hidden, maxima, factors)


WORD = 4  # bytes: a gate and its up


@cute.jit
def store_preactivations(ctx: GemmContext, tile: GemmTile, part: ResultPart, first: Int32, sums: cutlass.Constexpr[Any]):
    """A warp's part of the pass from row `first` of the tile on; `sums` are `load_columns`'s.  The tile of results is free again after the
    next barrier of the warpgroup."""
    problem = ctx.config.problem
    wait_group_read(0)
    part.sync_group()
    if cutlass.const_expr(problem.gate_up == INTERLEAVED):
        stage_alternating(part, sums)
    else:
        stage_halves(part, sums)
    part.sync_group()
    own = read_row(part.warp, part.lane)
    staged = read_address(part.staging, own, part.lane, part.tokens)
    begin = ctx.args.preactivations + Int64(column_of(ctx, part)) * 2
    for step in cutlass.range_constexpr(0, part.tokens, ROWS_PER_STEP):
        row = first + own + step
        if row < tile.valid_m:
            store_v4(begin + Int64(tile.row + row) * (2 * problem.n), load_shared_v4(staged + step * HALF_BYTES))


def stage_halves(part: ResultPart, sums: Any) -> None:
    """Those of one half of B in one half of a row, in their order: matrix k of a store is run k / 2, of half k % 2."""
    matrix = part.lane >> 3
    write = chunk_address(part.staging, (matrix & 1) * 8 + part.warp * 2 + (matrix >> 1), part.lane, part.tokens)
    for g, v in enumerate(sums):
        store_transposed_b16(write + g * (8 * HALF_BYTES), [pack_bf16(v[2 * k], v[2 * k + 1]) for k in range(4)])


def stage_alternating(part: ResultPart, sums: Any) -> None:
    """A gate, its up, and so on: lane t has those of channel t / 4 of both runs, for rows 2 (t % 4) and the next of every eight."""
    channel, pair = part.lane >> 2, (part.lane & 3) * 2
    for g, v in enumerate(sums):
        for run in range(2):
            for q in range(2):
                chunk = (part.warp * 2 + run) * 2 + (channel >> 2)
                place = chunk_address(part.staging, chunk, pair + q, part.tokens) + (8 * g * HALF_BYTES + (channel & 3) * WORD)
                store_shared_u32(place, pack_bf16(v[4 * run + q], v[4 * run + 2 + q]))


def column_of(ctx: GemmContext, part: ResultPart) -> Any:
    """The first of the eight columns that a lane writes."""
    problem, lane = ctx.config.problem, part.lane & 15
    if problem.gate_up == INTERLEAVED:
        return part.n_block * (2 * HALF_CHANNELS) + lane * 8
    return part.n_block * HALF_CHANNELS + (lane & 7) * 8 + select(lane < 8, Int32(0), Int32(problem.n // 2))

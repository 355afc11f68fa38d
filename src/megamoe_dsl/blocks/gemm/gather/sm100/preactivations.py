"""Gate and up of a pass of rows to memory, BF16, in columns as B has rows, before they are activated.

A warp has two runs of eight rows of B's one half, each before the eight of the other half that belong to them.  In the warpgroup's tile of
results those of one half lie together, or where gate and up alternate each beside its own; then 16 lanes write a row.
"""

from __future__ import annotations

from typing import Any, cast

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .....device.cast import pack_bf16
from .....device.memory import load_shared_v4, store_shared_u32, store_transposed_b16, store_v4
from .....device.tma import wait_group_read
from .....layouts.arith import select
from ....sm100.result_tile import HALF_BYTES, HALF_CHANNELS, chunk_address, read_address, read_row
from ....sm100.results import ROWS_PER_STEP, ResultPart
from ...context import GemmContext
from ...work_tile import GemmTile
from ..arguments import StoringArguments
from ..problem import INTERLEAVED

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
    begin = cast(StoringArguments, ctx.args).preactivations + Int64(column_of(ctx, part)) * 2
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

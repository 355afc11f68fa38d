"""The epilogue of the backward pass on SM100: as `gate_up_gradient` on SM90, of sums in tensor memory.

A warpgroup takes 16 rows of a pass through SMEM as FP32, so that a lane has eight channels of a row, in the order of memory: 16 lanes read
and write 128 channels.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....device.cast import f32_of_bits
from ....device.memory import load_f32, load_once_v4, load_shared_v4, store_f32, store_shared_f32, store_v4
from ....device.tcgen05 import load_columns
from ....device.warp import shuffle_xor_f32
from ....hardware.cta_pair import BLOCK_N
from ...sm100.epilogue_tile import PASS_ROWS, read_row
from ...sm100.results import ROWS_PER_STEP, EpilogueThread, ResultPart
from ..context import GemmContext, GemmTile
from ..gate_up_gradient import eight_channels
from ..problem import INTERLEAVED, UP_FIRST
from .epilogue import part_of

STAGED_ROWS = 16  # of FP32: as many bytes as a pass of BF16
LANES, CHANNELS = 16, 8  # of a row, and of a lane
STAGED_BYTES = 4 * BLOCK_N


@cute.jit
def finish_gradient(ctx: GemmContext, tile: GemmTile, me: EpilogueThread, column: Int32):
    """128 channels of a tile."""
    part = part_of(ctx, tile, me, column)
    for first in cutlass.range(part.first, tile.valid_m, part.every * PASS_ROWS, unroll=1):
        for staged in cutlass.range_constexpr(0, PASS_ROWS, STAGED_ROWS):
            finish_rows(ctx, tile, part, first + staged)


@cute.jit
def finish_rows(ctx: GemmContext, tile: GemmTile, part: ResultPart, first: Int32):
    """16 rows of a tile; a warp has two of every eight."""
    problem, args = ctx.config.problem, ctx.args
    column = part.n_block * BLOCK_N + part.lane % LANES * CHANNELS
    channel = cutlass.min(column, problem.n - CHANNELS)
    own = read_row(part.warp, part.lane)
    rows = [first + own + step for step in range(0, STAGED_ROWS, ROWS_PER_STEP)]
    places = [Int64(tile.row + cutlass.min(row, tile.valid_m - 1)) for row in rows]
    weights = [load_f32(args.row_weights + place * 4) for place in places]
    fetched = [[load_once_v4(one) for one in addresses(problem, args.gate_up, place, channel)] for place in places]
    sums = load_columns(part.column + first, STAGED_ROWS // 8)
    part.sync_group()
    stage_floats(part, sums)
    part.sync_group()
    for i in cutlass.range_constexpr(len(rows)):
        staged = part.staging + (own + i * ROWS_PER_STEP) * STAGED_BYTES + ((part.lane % LANES * 32) ^ (part.warp << 5))
        raw = [f32_of_bits(word) for half in range(2) for word in load_shared_v4(staged + 16 * half)]
        dots = [Float32(0.0)]
        weighted, *gradients = eight_channels(problem, raw, pairs_of(problem, fetched[i]), weights[i], dots, 0)
        if cutlass.const_expr(problem.gradient == INTERLEAVED):
            mixed = [word for both in zip(*gradients, strict=True) for word in both]
            gradients = [mixed[:4], mixed[4:]]
        total = dots[0]
        for mask in (1, 2, 4, 8):
            total = total + shuffle_xor_f32(total, mask)
        if (rows[i] < tile.valid_m) & (column < problem.n):
            for address, words in zip(addresses(problem, ctx.args.d, places[i], channel), gradients, strict=True):
                store_v4(address, words)
            store_v4(args.weighted + (places[i] * problem.n + channel) * 2, weighted)
            if part.lane % LANES == 0:
                store_f32(args.dots + (Int64(part.n_block) * ctx.args.m + places[i]) * 4, total)


def stage_floats(part: ResultPart, sums: Any) -> None:
    """Rows of 128 FP32, of which every 32 bytes lie where the row's bits 1 and 2 say: no two lanes of a store meet in a bank."""
    pair, channel = part.lane & 3, part.warp * 32 + (part.lane >> 2)
    for s in range(2):
        for h in range(2):
            place = part.staging + (2 * pair) * STAGED_BYTES + (((channel + 16 * s + 8 * h) * 4) ^ (pair << 5))
            for g, values in enumerate(sums):
                for q in range(2):
                    store_shared_f32(place + (8 * g + q) * STAGED_BYTES, values[4 * s + 2 * h + q])


def addresses(problem: Any, base: Any, row: Any, channel: Any) -> list[Any]:
    """Where a lane's gates and ups of a row lie, 16 bytes each, or alternating in 32."""
    begin = base + row * (4 * problem.n)
    if problem.gradient == INTERLEAVED:
        return [begin + Int64(4 * channel + 16 * half) for half in range(2)]
    gates, ups = begin + Int64(2 * channel), begin + Int64(2 * (channel + problem.n))
    return [ups, gates] if problem.gradient == UP_FIRST else [gates, ups]


def pairs_of(problem: Any, fetched: Any) -> list[tuple[Any, Any]]:
    """Words of gates and of ups of two channels each; where gate and up alternate, of a channel each."""
    if problem.gradient != INTERLEAVED:
        return list(zip(*fetched, strict=True))
    flat = [word for words in fetched for word in words]
    return list(zip(flat[::2], flat[1::2], strict=True))

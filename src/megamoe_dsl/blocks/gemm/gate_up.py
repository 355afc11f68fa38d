"""The epilogue of tiles of gate and up on SM90: activated, E4M3 with a power of two for each row and 128 channels, or BF16, row by row
to D.

The 128 channels of a row lie in the four threads of one quad.  A warp's 16 rows pass through its box of SMEM; where gate and up are stored
they pass through it first, 64 columns at a time.  In BF16 activated channels take the places of sums of a tile half as wide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...device import cast
from ...device.cast import joined_pairs, transposed
from ...device.memory import load_shared_v4, store_b16, store_f32, store_v4
from ...device.warp import sync_warp
from ...hardware.operand_tile import CHUNK, Swizzle
from ..sm90.share import WARP_ROWS, RowShare
from ..swiglu import activate
from .context import GemmContext, GemmTile
from .problem import GATE_FIRST, INTERLEAVED, SCALE_BLOCK
from .store import column_of, stage_rows, store_box_rows
from .tile import WARPS_PER_GROUP

ROW_BYTES = SCALE_BLOCK
CHUNKS = ROW_BYTES // CHUNK
ROWS_PER_STEP = 32 // CHUNKS


@cute.jit
def finish_gate_up(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile to D, and their scales."""
    problem, args, swizzle = ctx.config.problem, ctx.args, Swizzle(ROW_BYTES)
    staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, 0)
    if cutlass.const_expr(problem.preactivations):
        store_preactivations(ctx, tile, me, sums, staging)
    words = []
    for h in cutlass.range_constexpr(2):
        values = channels(ctx, sums, h)
        exponent = cast.scale_exponent(cast.max_over_quad(reduce(cast.abs_max, values)))
        inverse = cast.inverse_scale(exponent)
        if ((me.lane & 3) == 0) & (me.token + 8 * h < tile.valid_m):
            place = tile.n_block * args.d_sf_ld + tile.row + me.token + 8 * h
            store_f32(args.d_sf + Int64(place) * 4, cast.f32_of_bits(exponent << 23))
        words.append([cast.pack_e4m3(*(value * inverse for value in values[4 * i : 4 * i + 4])) for i in range(CHUNKS)])
    # Matrix m of a store: 8 rows (m % 2) by the 16-byte chunk 2 i + m / 2; lane 8 m + r addresses its row r.
    row = (me.lane & 15) * ROW_BYTES
    for i in cutlass.range_constexpr(CHUNKS // 2):
        chunk = (me.lane >> 4) + 2 * i
        store_b16(staging + swizzle(row + chunk * CHUNK), [words[h][2 * i + j] for j in range(2) for h in range(2)])
    sync_warp()
    ordered = transposed if problem.gate_up == INTERLEAVED else joined_pairs
    column = tile.n_block * ROW_BYTES + (me.lane & (CHUNKS - 1)) * CHUNK
    for step in cutlass.range_constexpr(0, WARP_ROWS, ROWS_PER_STEP):
        row_of_warp = step + me.lane // CHUNKS
        token = me.warp_token + row_of_warp
        if token < tile.valid_m:
            stored = load_shared_v4(staging + swizzle(row_of_warp * ROW_BYTES + (me.lane & (CHUNKS - 1)) * CHUNK))
            store_v4(args.d + (Int64(tile.row + token) * problem.d_columns + column), ordered(stored))
    sync_warp()


@cute.jit
def store_preactivations(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any, staging: Int32):
    """A warp's 16 rows of gate and up, rounded as they are before they are activated."""
    config, swizzle, chunk = ctx.config, Swizzle(ROW_BYTES), (me.lane & (CHUNKS - 1)) * CHUNK
    for box in cutlass.range_constexpr(config.tile.boxes(me.half)):
        stage_rows(config, staging, me, sums, box)
        sync_warp()
        first = ctx.args.preactivations + (column_of(config, tile, box * config.tile.store_columns) * 2 + chunk)
        for row in cutlass.range(me.lane // CHUNKS, WARP_ROWS, ROWS_PER_STEP, unroll=1):
            token = me.warp_token + row
            if has_columns(config, tile, box, chunk, token < tile.valid_m):
                stored = load_shared_v4(staging + swizzle(row * ROW_BYTES + chunk))
                store_v4(first + Int64(tile.row + token) * (2 * config.problem.n), stored)
        sync_warp()


def has_columns(config: Any, tile: GemmTile, box: int, chunk: Any, there: Any) -> Any:
    """Whether a row that is `there` has the eight columns at byte `chunk` of a box: gate and up may end within the last tile."""
    problem, column = config.problem, box * config.tile.store_columns
    if problem.n % config.block_n == 0:
        return there
    first_half = problem.gate_up != INTERLEAVED and (column < config.block_n // 2) == (problem.gate_up == GATE_FIRST)
    return there & (column_of(config, tile, column) + chunk // 2 < (problem.n // 2 if first_half else problem.n))


def channels(ctx: GemmContext, sums: Any, h: int) -> list[Float32]:
    """A thread's 32 activated channels of its row h: four that follow one another here make its word of a 16-byte chunk.

    Gate and up in parts of their own: channels 8 j + pair + e of j = 0 to 15, two j in a word.  Interleaved: channels 4 j + lane % 4 of
    j = 0 to 31, four j in a word.
    """
    if ctx.config.problem.gate_up == INTERLEAVED:
        pairs = [(part[4 * j + 2 * h], part[4 * j + 2 * h + 1]) for part in sums for j in range(len(part) // 4)]
    else:
        values = [one for part in sums for one in part]
        gates, ups = values[: len(values) // 2], values[len(values) // 2 :]
        pairs = [(gates[4 * j + 2 * h + e], ups[4 * j + 2 * h + e]) for j in range(len(gates) // 4) for e in range(2)]
    found: list[Float32] = []
    for first in range(0, len(pairs), 2):
        gate, up = zip(*pairs[first : first + 2], strict=True)
        found += activate(ctx, gate, up, (Float32(1.0),) * 2)
    return found


@cute.jit
def finish_gate_up_bf16(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile to D."""
    config, problem = ctx.config, ctx.config.problem
    staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, 0)
    if cutlass.const_expr(problem.preactivations):
        store_preactivations(ctx, tile, me, sums, staging)
    columns, box_columns = config.block_n // 2, config.tile.store_columns
    # As an accumulator has values: two of each 8 channels of a row; interleaved, channels q and q + 4 of lane q of a quad.
    found = [channels(ctx, sums, h) for h in range(2)]
    half, activated = replace(me, chunk_rows=columns), tuple(one[2 * j + e] for j in range(columns // 8) for one in found for e in range(2))
    ordered = joined_pairs if problem.gate_up == INTERLEAVED else tuple
    row, rows = tile.row + me.warp_token, tile.valid_m - me.warp_token
    for box in cutlass.range_constexpr(columns // box_columns):
        stage_rows(config, staging, half, (activated,), box)
        sync_warp()
        store_box_rows(ctx, staging, tile.n_block * columns + box * box_columns, row, rows, me.lane, ordered)

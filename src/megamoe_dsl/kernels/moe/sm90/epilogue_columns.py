"""Epilogues of tiles whose tokens are the wgmma's columns (blocks/sm90/share.py).

A thread has gate (h = 0) and up (h = 1) of one channel per block of 64 rows.  Weight rows are ordered so that the outputs lie where
stmatrix puts them (quant.order_rows_sm90): E4M3 in 16-byte chunk 4 * warpgroup + warp, byte 2 * row + block; BF16 in box `warpgroup`,
chunk 2 * warp + block, value `row`.

Linear1 signals store_full: the tile is in SMEM and its scales are in the Linear2 pool.  Linear2 signals nothing per tile.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int64

from ....blocks.sm90.share import BLOCK_ROWS, ColumnShare
from ....blocks.swiglu import activate
from ....device import cast
from ....device.mbarrier import arrive
from ....device.memory import fence_async_shared, load_f32, load_f32x2, load_shared_f32x2, load_shared_v4, store_f32, store_transposed_b16
from ....device.ptx import emit
from ....device.warp import named_barrier, sync_warp
from ....hardware.operand_tile import SW128
from ..context import Context, WorkTile
from ..layouts.smem_plan import NamedBarrier
from ..pool import add_bias, bias_address, free_rows, weighs_bias, weights_of_pair
from .memory_plan import MATH_WARPGROUPS, MOST_COLUMNS, TILE_ROWS

WARPS = 4 * MATH_WARPGROUPS
ROW_BYTES = 128
ROWS_PER_STEP = 8  # tokens that the four warps of a group write at a time, two per warp
HALF = 128  # bytes: a row of 128 BF16 lies in SMEM as two swizzled halves
MATH_THREADS = 128 * MATH_WARPGROUPS


def sync_math_warps() -> None:
    """All threads of both warpgroups.  Before maxima are written, the wait for store_empty has ordered that all have read those of the tile
    before, but by single lanes of the store warp, which compute-sanitizer does not follow."""
    named_barrier(NamedBarrier.EPILOGUE_ALL, MATH_THREADS)


@cute.jit
def pieces_e4m3(ctx: Context, tile: WorkTile, me: ColumnShare, outputs: Any, peaks: Any):
    """What a warp puts into a chunk of 16 bytes of each token: (chunk, words); the scales go to the pool, one power of two per token and
    128 channels, which all math warps share.  `peaks` are the largest of the warp's values of each token of a pair."""
    row = ctx.config.first_row(tile.pool_block)
    warp = me.group * 4 + me.warp
    sync_math_warps()
    if me.lane < 4:
        for g in cutlass.range_constexpr(len(peaks)):
            emit("st.shared.v2.f32 [{}], {{{}, {}}};", ctx.shared("amax", warp, me.pair) + g * 32, *peaks[g])
    sync_math_warps()
    scales = ctx.at("fc2_sf", tile.n_block, row + me.pair)
    words = []
    for g in cutlass.range_constexpr(len(peaks)):
        theirs = [load_shared_f32x2(ctx.shared("amax", other, me.pair) + g * 32) for other in range(WARPS)]
        amax = [reduce(cast.abs_max, column) for column in zip(*theirs, strict=True)]
        exponents = [cast.scale_exponent(a) for a in amax]
        if (warp == 0) & (me.lane < 4):
            for q in cutlass.range_constexpr(2):
                store_f32(scales + g * 32 + q * 4, cast.f32_of_bits(exponents[q] << 23))
        inverse = [cast.inverse_scale(e) for e in exponents]
        # Bytes: token 0 of both blocks, token 1 of both blocks.
        words.append(cast.pack_e4m3(*(outputs[g][b][q] * inverse[q] for q in range(2) for b in range(2))))
    return [(warp, words)]


def pieces_bf16(me: ColumnShare, outputs: Any) -> list[tuple[Any, list[Any]]]:
    """The same as BF16, without scales.  The boxes lie where a slower warp may still read results of a Linear2 tile."""
    sync_math_warps()
    return [(2 * me.warp + b, [cast.pack_bf16(*values[b]) for values in outputs]) for b in range(2)]


@cute.jit
def finish_fc1(ctx: Context, tile: WorkTile, me: ColumnShare, acc: Any):
    """SwiGLU times the top-k weight, in the format that Linear2 reads, into SMEM (article 4.5.4)."""
    scaled, groups = ctx.config.scaled, ctx.config.block_m // 8
    weights = ctx.at("fc1_topk_weights", ctx.config.first_row(tile.pool_block) + me.pair)
    outputs, peaks = [], []
    for g in cutlass.range_constexpr(groups):
        w = weights_of_pair(ctx, weights + g * 32)
        values = [activate(ctx, b[4 * g : 4 * g + 2], b[4 * g + 2 : 4 * g + 4], w) for b in acc]
        outputs.append(values)
        if cutlass.const_expr(scaled):
            peaks.append([cast.max_over_rows(cast.abs_max(values[0][q], values[1][q])) for q in range(2)])
    pieces = pieces_e4m3(ctx, tile, me, outputs, peaks) if scaled else pieces_bf16(me, outputs)
    cd = ctx.shared("cd") + ctx.config.fc1_box(0 if scaled else me.group)  # E4M3 is one box
    for chunk, words in pieces:
        for first in cutlass.range_constexpr(0, groups, 4):
            some = words[first : first + 4]
            token = (me.lane & (8 * len(some) - 1)) + 8 * first
            store_transposed_b16(cd + token * ROW_BYTES + SW128.chunk(chunk, token), some)
    fence_async_shared()  # the store warp's TMA reads `cd` through the async proxy
    sync_warp()
    if me.lane == 0:
        arrive(ctx.barrier("store_full"))


@cute.jit
def finish_fc2(ctx: Context, tile: WorkTile, me: ColumnShare, acc: Any):
    """Results to where the context says: in the fused kernel straight into the combine buffers of the tokens' ranks (article 4.5.5).
    Each warpgroup has its own 128 channels, `MOST_COLUMNS` tokens at a time."""
    form = ctx.outputs
    value_bytes = form.row.value_bytes
    rows = min(ctx.config.block_m, MOST_COLUMNS)
    row = ctx.config.first_row(tile.pool_block)
    cd = ctx.shared("cd", me.group * ctx.config.fc2_tile_bytes)
    # Writing: lane 8 k + c addresses channels 64 (k / 2) + 16 warp + 8 (k % 2).. of token c.
    matrix = me.lane >> 3
    chunk = (matrix >> 1) * 8 + me.warp * 2 + (matrix & 1)
    write = cd + (chunk >> 3) * (rows * HALF) + (me.lane & 7) * HALF + SW128.chunk(chunk, me.lane)
    # Reading: 16 lanes per token.
    own_row = me.warp * 2 + (me.lane >> 4)
    read = cd + ((me.lane >> 3) & 1) * (rows * HALF) + own_row * HALF + SW128.chunk(me.lane, own_row)
    channel_bytes = Int64(tile.n_block * (value_bytes * TILE_ROWS) + me.group * (value_bytes * 128) + (me.lane & 15) * (value_bytes * 8))
    for first in cutlass.range_constexpr(0, ctx.config.block_m, rows):
        # What was there last has been read by the warpgroup.
        named_barrier(me.group + NamedBarrier.EPILOGUE_GROUP, 128)
        for g in cutlass.range_constexpr(rows // 8):
            at = first // 2 + 4 * g
            words = [cast.pack_bf16(b[at + 2 * h], b[at + 2 * h + 1]) for b in acc for h in range(2)]
            store_transposed_b16(write + g * (8 * HALF), words)
        destinations = ctx.result_rows(ctx.result_place(row + own_row + first), range(0, rows, ROWS_PER_STEP))
        named_barrier(me.group + NamedBarrier.EPILOGUE_GROUP, 128)
        if cutlass.const_expr(first + rows == ctx.config.block_m):
            free_rows(ctx, tile, me.lane, destinations, [own_row + step + first < tile.valid_m for step in range(0, rows, ROWS_PER_STEP)])
        for i, step in enumerate(range(0, rows, ROWS_PER_STEP)):
            if own_row + step + first < tile.valid_m:
                form.send(destinations[i] + channel_bytes, channel_bytes, me.lane, load_shared_v4(read + step * HALF))


def columns_with_bias(ctx: Context, tile: Any, me: Any, phase: int, acc: Any) -> tuple[tuple[Any, ...], ...]:
    """The sums of a share whose tokens are columns: a thread has four weight rows, and two tokens of every eight."""
    first = tile.n_block * TILE_ROWS + me.group * (2 * BLOCK_ROWS) + me.warp * 16 + me.row
    address = bias_address(ctx, phase, tile.expert, first)
    biases = [[load_f32(address + (BLOCK_ROWS * b + 8 * h) * 4) for h in range(2)] for b in range(len(acc))]
    groups = ctx.config.block_m // 8
    weights: list[Any] = [(None, None)] * groups
    if weighs_bias(ctx, phase):
        tokens = ctx.at("fc1_topk_weights", ctx.config.first_row(tile.pool_block) + me.pair)
        weights = [load_f32x2(tokens + g * 32) for g in range(groups)]
    return tuple(
        tuple(
            add_bias(ctx, phase, part[4 * g + 2 * h + q], biases[b][h], weights[g][q])
            for g in range(groups)
            for h in range(2)
            for q in range(2)
        )
        for b, part in enumerate(acc)
    )

"""The math warpgroups: each multiplies every so many-th tile of the CTA, whose rows are the wgmma's columns.

| phase   | what becomes of sums | signals |
|---|---|---|
| Linear1 | gate and up of a channel lie in one thread: activated, to `h` | counter `ready` of the tile's rows |
| Linear2 | BF16, to `rows`; who finishes the last tile of a column sums those of each token to y | counter `done` of the column |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ...blocks.gemm.problem import BF16, SCALE_BLOCK
from ...blocks.sm90.main_loop import accumulate_tile, multiply_ahead
from ...blocks.sm90.math_thread import MathThread, ScaleMatrix, WeightScales
from ...blocks.sm90.tokens_as_n import ColumnShare
from ...blocks.swiglu import activate
from ...blocks.weighted_sum import PER_LANE, add_row, packed_sum
from ...device.cast import pack_bf16
from ...device.memory import (
    count_arrival,
    load_float,
    load_shared_u32,
    reduce_add_u32,
    store_f32,
    store_shared_u32,
    store_u16,
    store_v4,
)
from ...device.ring import Stage
from ...device.warp import named_barrier
from ...layouts.arith import div
from .config import GROUP_WARPS, K_IN_FLIGHT, WEIGHT_ROWS
from .context import DecodeContext, DecodeTile, next_tile
from .problem import FC1, FC2

THREADS = 32 * GROUP_WARPS
CHUNKS = WEIGHT_ROWS // PER_LANE


@cute.jit
def math(ctx: DecodeContext, warp: Int32):
    """All math warps; `warp` counts within them."""
    config, group = ctx.config, warp // GROUP_WARPS
    me = ColumnShare.of(MathThread(Int32(0), warp % GROUP_WARPS, cute.arch.lane_idx()), config.block_m, 1)
    tile, tiles = next_tile(ctx.first_tile_of(group))
    stage = ctx.first_stage(group)
    while tile.valid():
        if tile.phase == FC1:
            sums, stage = multiply(ctx, tile, me, stage, FC1)
            finish_fc1(ctx, tile, me, group, sums)
        else:
            sums, stage = multiply(ctx, tile, me, stage, FC2)
            finish_fc2(ctx, tile, me, group, sums)
        tile, tiles = next_tile(tiles)


@cute.jit
def multiply(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, stage: Stage, phase: cutlass.Constexpr[int]):
    """The sums of a tile, and the ring's stage after it."""
    config, k_blocks = ctx.config, ctx.config.k_blocks(phase)
    if cutlass.const_expr(not config.problem.formats.scaled):
        return accumulate_tile(stage, me, Int32(k_blocks), config.problem.formats.activations.element)
    return multiply_ahead(stage, me, scales_of(ctx, tile, me, phase), Int32(k_blocks), K_IN_FLIGHT)


def scales_of(ctx: DecodeContext, tile: DecodeTile, me: Any, phase: int) -> WeightScales:
    """Linear1 has those of gate and those of up, in the order of W1's rows; where these alternate they are the same."""
    problem = ctx.config.problem
    rows = problem.n(phase) // SCALE_BLOCK
    matrix = ScaleMatrix((ctx.args.w1_sf, ctx.args.w2_sf)[phase], Int32(ctx.config.k_blocks(phase)), ctx.config.k_blocks(phase))
    halves = phase == FC1 and not problem.interleaved
    first = tile.expert * rows + div(tile.n_block, SCALE_BLOCK // (WEIGHT_ROWS // 2 if halves else WEIGHT_ROWS))
    found = [first, first + rows // 2] if halves else [first]
    return WeightScales(tuple(matrix.load(row, me.lane) for row in found), Boolean(False))


@cute.jit
def finish_fc1(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, group: Int32, sums: Any):
    """A thread's channel of each row."""
    problem, channel = ctx.config.problem, tile.n_block * (WEIGHT_ROWS // 2) + me.warp * 8 + me.row
    for j in cutlass.range_constexpr(ctx.config.block_m // 8):
        halves = [sums[0][4 * j + 2 * h : 4 * j + 2 * h + 2] for h in range(2)]
        gate, up = reversed(halves) if problem.up_first else halves
        values = activate(ctx, gate, up, (Float32(1.0),) * 2)
        for q in cutlass.range_constexpr(2):
            column = 8 * j + me.pair + q
            if column < tile.count:
                place = Int64(ctx.slot(tile, column)) * problem.intermediate + channel
                if cutlass.const_expr(problem.formats.scaled):
                    store_f32(ctx.args.h + place * 4, values[q])
                else:
                    store_u16(ctx.args.h + place * 2, pack_bf16(values[q], values[q]))
    named_barrier(group + 1, THREADS)
    if me.warp * 32 + me.lane == 0:
        reduce_add_u32(ctx.counter("ready", tile.block), 1, "release", "gpu")


@cute.jit
def finish_fc2(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, group: Int32, sums: Any):
    """A thread's two channels of each row; then the sums of the tile's column, where no other tile of it is left."""
    config, hidden, thread = ctx.config, ctx.config.problem.hidden, me.warp * 32 + me.lane
    for j in cutlass.range_constexpr(config.block_m // 8):
        for q in cutlass.range_constexpr(2):
            column = 8 * j + me.pair + q
            if column < tile.count:
                row = ctx.args.rows + Int64(ctx.slot(tile, column)) * (2 * hidden)
                for h in cutlass.range_constexpr(2):
                    channel = tile.n_block * WEIGHT_ROWS + me.warp * 16 + me.row + 8 * h
                    if hidden % WEIGHT_ROWS == 0 or channel < hidden:
                        value = sums[0][4 * j + 2 * h + q]
                        store_u16(row + Int64(channel) * 2, pack_bf16(value, value))
    named_barrier(group + 1, THREADS)
    if thread == 0:
        store_shared_u32(ctx.shared("before", group), count_arrival(ctx.counter("done", tile.n_block)))
    named_barrier(group + 1, THREADS)
    if load_shared_u32(ctx.shared("before", group)) == load_shared_u32(ctx.shared("blocks", 0)) - 1:
        sum_column(ctx, tile.n_block, thread)


@cute.jit
def sum_column(ctx: DecodeContext, n_block: Int32, thread: Int32):
    """64 channels of every token, eight a thread."""
    config, args, topk, hidden = ctx.config, ctx.args, ctx.config.problem.topk, ctx.config.problem.hidden
    channel, bf16 = n_block * WEIGHT_ROWS + thread % CHUNKS * PER_LANE, config.weights == BF16
    if channel < hidden:
        for token in cutlass.range(thread // CHUNKS, args.num_tokens, THREADS // CHUNKS, unroll=1):
            total = (Float32(0.0),) * PER_LANE
            for i in cutlass.range_constexpr(topk):
                slot = token * topk + i
                there = Int32(load_shared_u32(ctx.shared("expert_of", slot))) >= 0
                weight = load_float(args.topk_weights + Int64(slot) * (2 if bf16 else 4), bf16)
                total = add_row(total, lambda at=slot: args.rows + (Int64(at) * hidden + channel) * 2, there, weight)
            store_v4(args.y + (Int64(token) * hidden + channel) * 2, packed_sum(total))

"""The math warpgroups: each multiplies every so many-th tile of the CTA, whose rows are the wgmma's columns.

| phase   | what becomes of sums | signals |
|---|---|---|
| Linear1 | gate and up of a channel lie in one thread: activated, to `h` | the words themselves |
| Linear2 | BF16, to `rows`; who has the last tile of rows of a column sums those of each token to y | the words themselves |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32

from ...blocks.gemm.problem import INTERLEAVED, SCALE_BLOCK, UP_FIRST
from ...blocks.gemm.tile import GROUP_ROWS
from ...blocks.sm90.packed_share import PackedShare
from ...blocks.sm90.share import ColumnShare, MathThread, ScaleMatrix, WeightScales, accumulate_tile, multiply_ahead
from ...blocks.swiglu import activate
from ...blocks.weighted_sum import PER_LANE, add_row, load_row, packed_sum
from ...device.cast import pack_bf16
from ...device.memory import load_relaxed_v4, load_shared_f32, load_shared_u32, store_relaxed_f32, store_relaxed_u32, store_v4
from ...device.ring import Stage
from ...device.warp import shuffle_xor
from ...layouts.arith import div
from .config import GROUP_WARPS, GROUPS
from .context import DecodeContext, DecodeTile, any_absent, next_tile
from .problem import FC1, FC2

AT_ONCE = 12  # rows that a thread has on their way from memory
K_IN_FLIGHT = 2  # K blocks that a warpgroup has in the tensor core at a time, where sums are promoted


@cute.jit
def math(ctx: DecodeContext, warp: Int32):
    """All math warps; `warp` counts within them."""
    group = warp // GROUP_WARPS
    me = ColumnShare.of(MathThread(Int32(0), warp % GROUP_WARPS, cute.arch.lane_idx()), ctx.config.block_m, 1)
    tile, tiles = next_tile(ctx.first_tile.alternate(group, GROUPS))
    stage = ctx.first_stage(group)
    while tile.valid():
        if tile.phase == FC1:
            sums, stage = multiply(ctx, tile, me, stage, FC1)
            if (tile.part == 0) | (tile.part == div(me.warp, GROUP_WARPS // 2) + 1):
                finish_fc1(ctx, tile, me, sums)
        else:
            sums, stage = multiply(ctx, tile, me, stage, FC2)
            finish_fc2(ctx, tile, me, sums)
        tile, tiles = next_tile(tiles)


@cute.jit
def multiply(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, stage: Stage, phase: cutlass.Constexpr[int]):
    """The sums of a tile, and the ring's stage after it; packed weights are decoded by the threads themselves."""
    config, k_blocks = ctx.config, Int32(ctx.config.k_blocks(phase))
    if cutlass.const_expr(config.source.part is not None):
        stage.wait_full()
        return PackedShare.of(me, config.block_m, ctx.shared("decoded"), config.source.part).multiply_tile(stage, None, k_blocks)
    if cutlass.const_expr(not config.problem.formats.scaled):
        return accumulate_tile(stage, me, k_blocks, config.problem.formats.activations.element)
    return multiply_ahead(stage, me, scales_of(ctx, tile, me, phase), k_blocks, K_IN_FLIGHT)


def scales_of(ctx: DecodeContext, tile: DecodeTile, me: Any, phase: int) -> WeightScales:
    """Linear1 has those of gate and those of up, in the order of W1's rows; where these alternate they are the same."""
    problem = ctx.config.problem
    rows = problem.n(phase) // SCALE_BLOCK
    matrix = ScaleMatrix((ctx.args.w1_sf, ctx.args.w2_sf)[phase], Int32(ctx.config.k_blocks(phase)), ctx.config.k_blocks(phase))
    halves = phase == FC1 and problem.gate_up != INTERLEAVED
    first = tile.expert * rows + div(tile.n_block, SCALE_BLOCK // (GROUP_ROWS // 2 if halves else GROUP_ROWS))
    found = [first, first + rows // 2] if halves else [first]
    return WeightScales(tuple(matrix.load(row, me.lane) for row in found), Boolean(False))


@cute.jit
def finish_fc1(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, sums: Any):
    """A thread's channel of each row, in every block of 64 weight rows."""
    for block in cutlass.range_constexpr(len(sums)):
        channel = ctx.config.source.channel(tile, me.warp, me.row, block)
        for j in cutlass.range_constexpr(ctx.config.block_m // 8):
            store_activated(ctx, tile, me, j, channel, sums[block])


@cute.jit
def store_activated(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, j: cutlass.Constexpr[int], channel: Int32, sums: Any):
    """A thread's channel of two rows of a tile."""
    problem = ctx.config.problem
    halves = [sums[4 * j + 2 * h : 4 * j + 2 * h + 2] for h in range(2)]
    gate, up = reversed(halves) if problem.gate_up == UP_FIRST else halves
    values = activate(ctx, gate, up, weights_of(ctx, tile, 8 * j + me.pair))
    if cutlass.const_expr(problem.formats.scaled):
        for q in cutlass.range_constexpr(2):
            column = 8 * j + me.pair + q
            if column < tile.count:
                store_relaxed_f32(ctx.result("h", ctx.slot(tile, column), channel), values[q])
    else:
        store_two_channels(ctx, tile, me, "h", j, channel, values)


def weights_of(ctx: DecodeContext, tile: DecodeTile, column: Any) -> tuple[Any, Any]:
    """That Linear1 multiplies two rows with; of a row that the tile does not have, any."""
    if ctx.config.problem.weigh_results:
        return Float32(1.0), Float32(1.0)
    first, second = (load_shared_f32(ctx.shared("weight_of", ctx.slot(tile, cutlass.min(column + q, tile.count - 1)))) for q in range(2))
    return first, second


@cute.jit
def store_two_channels(
    ctx: DecodeContext,
    tile: DecodeTile,
    me: ColumnShare,
    name: cutlass.Constexpr[str],
    j: cutlass.Constexpr[int],
    channel: Int32,
    values: Any,
):
    """BF16 of a thread's channel in two rows of a tile: one of the rows as a word with the neighbor's channel."""
    odd, own = me.row & 1, Uint32(pack_bf16(*values))
    other = shuffle_xor(own, 4)
    first, second = (own & Uint32(0xFFFF)) | (other << 16), (other >> 16) | (own & Uint32(0xFFFF0000))
    word = Uint32(cutlass.select_(odd == 0, first, second))
    column = 8 * j + me.pair + odd
    if (column < tile.count) & (channel - odd < ctx.config.results[name].field.shape[1]):
        store_relaxed_u32(ctx.result(name, ctx.slot(tile, column), channel - odd), word)


@cute.jit
def finish_fc2(ctx: DecodeContext, tile: DecodeTile, me: ColumnShare, sums: Any):
    """A thread's two channels of each row, in every block of 64 weight rows; then the sums of the tile's column, if it is its last tile."""
    config, rows = ctx.config, ctx.config.source.rows
    for block in cutlass.range_constexpr(len(sums)):
        for j in cutlass.range_constexpr(config.block_m // 8):
            for h in cutlass.range_constexpr(2):
                channel = tile.n_block * rows + block * GROUP_ROWS + me.warp * 16 + me.row + 8 * h
                store_two_channels(ctx, tile, me, "rows", j, channel, sums[block][4 * j + 2 * h : 4 * j + 2 * h + 2])
    if tile.block == load_shared_u32(ctx.shared("blocks", 0)) - 1:
        chunks = rows // PER_LANE
        for first in cutlass.range_constexpr(0, config.max_tokens, 32 * GROUP_WARPS // chunks):
            thread = me.warp * 32 + me.lane
            sum_rows(ctx, first + thread // chunks, tile.n_block * rows + thread % chunks * PER_LANE)


@cute.jit
def sum_rows(ctx: DecodeContext, token: Int32, channel: Int32):
    """A thread's eight channels of a token.  Waits for the tiles of rows before, which have lower numbers."""
    config, hidden = ctx.config, ctx.config.problem.hidden
    there = (channel < hidden) & (token < ctx.args.num_tokens)
    total = (Float32(0.0),) * PER_LANE
    for start in cutlass.range_constexpr(0, config.problem.topk, AT_ONCE):
        slots = [token * config.problem.topk + i for i in range(start, min(start + AT_ONCE, config.problem.topk))]
        total = add_rows(ctx, slots, channel, there, total)
    if there:
        store_v4(ctx.args.y + (Int64(token) * hidden + channel) * 2, packed_sum(total))


@cute.jit
def add_rows(ctx: DecodeContext, slots: Any, channel: Int32, there: Boolean, total: Any):
    """The sums so far and those of some slots' rows; a masked slot has none."""
    masks, weights = [], []
    for slot in slots:
        mask, weight = Boolean(False), Float32(0.0)
        if there:
            mask = Int32(load_shared_u32(ctx.shared("expert_of", slot))) >= 0
            weight = load_shared_f32(ctx.shared("weight_of", slot)) if ctx.config.problem.weigh_results else Float32(1.0)
        masks.append(mask)
        weights.append(weight)
    places = [(lambda at=slot: ctx.result("rows", at, channel), mask) for slot, mask in zip(slots, masks, strict=True)]
    rows = tuple(load_row(*place, load_relaxed_v4) for place in places)
    while any_absent([word for words in rows for word in words]):
        rows = tuple(load_row(*place, load_relaxed_v4) for place in places)
    for words, mask, weight in zip(rows, masks, weights, strict=True):
        total = add_row(total, words, mask, weight)
    return total

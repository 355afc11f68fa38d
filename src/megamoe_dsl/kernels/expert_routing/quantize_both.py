"""Rows of BF16 in E4M3 twice: a scale for every 128 channels of a row, and, transposed, one for every 128 rows of a channel, so that a
GEMM may sum over either; in MXFP8 for every 32.  As `quant.quantize_e4m3_f32` and `quant.quantize_e4m3` round.  A CTA takes 128 rows by
128 channels at a time: a half warp reads a row, quantizes it and leaves it in shared memory; then a thread has two channels of 32 rows.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...blocks.cta import begin, shared_memory
from ...blocks.gemm.problem import SCALE_BLOCK
from ...blocks.quantize import PER_LANE, SCALE_LANES, f32_scale, quantize, scaled_by
from ...blocks.weighted_sum import load_row
from ...device.cast import abs_max, inverse_scale, pack_e4m3, scale_exponent, unpack_bf16
from ...device.memory import (
    load_shared_f32x2,
    load_shared_u32,
    load_u32,
    store_f32,
    store_shared_f32x2,
    store_shared_v4,
    store_u8,
    store_v2,
    store_v2_f32,
    store_v4,
)
from ...hardware.operand_tile import CHANNELS_PER_SCALE, CHANNELS_PER_WORD, utccp_row
from ...layouts.arith import div
from .arguments import QuantizeArguments
from .config import PARTS

PART_ROWS = SCALE_BLOCK // PARTS
PAIRS = SCALE_BLOCK // 2
LANES = CHANNELS_PER_SCALE // PER_LANE  # that share a UE8M0 scale; a part of a channel's rows has one, too


@cute.jit
def quantize_rows(config: cutlass.Constexpr[Any], args: QuantizeArguments, smem: Int32, thread: Int32, row: Int32, channel: Int32):
    """Rows from `row` on, 128 channels from `channel` on, which stay in shared memory."""
    hidden, half, lane = config.problem.hidden, thread // SCALE_LANES, thread % SCALE_LANES
    own, halves = channel + lane * PER_LANE, config.num_threads // SCALE_LANES
    found = []
    for turn in cutlass.range_constexpr(SCALE_BLOCK // halves):
        number = row + turn * halves + half
        source = load_u32(args.sources + Int64(number) * 4) if config.problem.gathered else number
        found.append(load_row(lambda at=source: args.x + (Int64(at) * hidden + own) * 2, source >= 0))
    for turn in cutlass.range_constexpr(SCALE_BLOCK // halves):
        place = turn * halves + half
        if cutlass.const_expr(config.problem.columns):
            store_shared_v4(config.smem.region.address(smem, "values", place, lane * 4), found[turn])
        if cutlass.const_expr(config.problem.rows):
            words, scale = quantize(config.problem.formats.activations, found[turn])
            store_v2(args.codes + Int64(row + place) * hidden + own, *words)
            if cutlass.const_expr(config.problem.formats.promoted):
                if lane == 0:
                    store_f32(args.scales + (Int64(channel // SCALE_BLOCK) * args.num_rows + row + place) * 4, scale)
            elif lane % LANES == 0:
                matrix, count, first = matrix_of(config, args, row)
                line = Int64(matrix * (hidden // SCALE_BLOCK) + channel // SCALE_BLOCK) * count
                store_u8(args.scales + (line + first + utccp_row(place)) * 4 + lane // LANES, scale)


def matrix_of(config: Any, args: QuantizeArguments, row: Any) -> tuple[Any, Any, Any]:
    """The matrix that has a row, its rows, and the row's number among them."""
    count = config.problem.matrix_rows
    if not count:
        return 0, args.num_rows, row
    matrix = div(row, count)
    return matrix, count, row - matrix * count


@cute.jit
def quantize_channels(config: cutlass.Constexpr[Any], args: QuantizeArguments, smem: Int32, thread: Int32, row: Int32, channel: Int32):
    """The same, channel by channel, from shared memory."""
    pair, part = thread % PAIRS, thread // PAIRS
    words = [load_shared_u32(config.smem.region.address(smem, "values", part * PART_ROWS + i, pair)) for i in range(PART_ROWS)]
    sides = list(zip(*(unpack_bf16(word) for word in words), strict=True))
    largest = [reduce(abs_max, values, Float32(0.0)) for values in sides]
    if cutlass.const_expr(config.problem.formats.promoted):
        store_shared_f32x2(config.smem.region.address(smem, "maxima", part, 2 * pair), *largest)
        cute.arch.sync_threads()
        for other in cutlass.range_constexpr(PARTS):
            maxima = load_shared_f32x2(config.smem.region.address(smem, "maxima", other, 2 * pair))
            largest = [abs_max(one, another) for one, another in zip(largest, maxima, strict=True)]
        scales = [f32_scale(amax) for amax in largest]
    else:
        scales = [(one, inverse_scale(one)) for one in (scale_exponent(amax) for amax in largest)]
    matrix, count, first = matrix_of(config, args, row)
    for side, (_, factor) in enumerate(scales):
        codes = scaled_by(sides[side], factor)
        packed = [pack_e4m3(*codes[i : i + 4]) for i in range(0, PART_ROWS, 4)]
        place = args.codes_t + Int64(matrix * config.problem.hidden + (channel + 2 * pair + side)) * count + first + part * PART_ROWS
        for i in cutlass.range_constexpr(0, PART_ROWS // 4, 4):
            store_v4(place + 4 * i, tuple(packed[i : i + 4]))
    if cutlass.const_expr(not config.problem.formats.promoted):
        words = args.scales_t + (Int64(div(row, CHANNELS_PER_WORD)) * config.problem.hidden + channel) * 4
        for side in cutlass.range_constexpr(2):
            store_u8(words + utccp_row(2 * pair + side) * 4 + part, scales[side][0])
    elif part == 0:
        at = (Int64(div(row, SCALE_BLOCK)) * config.problem.hidden + channel + 2 * pair) * 4
        store_v2_f32(args.scales_t + at, scales[0][0], scales[1][0])


@cute.kernel
def quantize_both_kernel(config: cutlass.Constexpr[Any], args: QuantizeArguments):
    """One CTA: it strides over blocks of 128 x 128."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    smem, across = shared_memory(config.smem.region), config.problem.hidden // SCALE_BLOCK
    begin()
    for block in cutlass.range(cta, args.num_rows // SCALE_BLOCK * across, config.num_sms, unroll=1):
        down = div(block, across)
        row, channel = down * SCALE_BLOCK, (block - down * across) * SCALE_BLOCK
        quantize_rows(config, args, smem, thread, row, channel)
        if cutlass.const_expr(config.problem.columns):
            cute.arch.sync_threads()
            quantize_channels(config, args, smem, thread, row, channel)
            if cutlass.const_expr(not config.problem.formats.promoted):  # else all have read values before the barrier of maxima
                cute.arch.sync_threads()

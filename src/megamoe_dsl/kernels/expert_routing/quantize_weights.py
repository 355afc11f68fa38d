"""Matrices of BF16 in E4M3 with a scale for 128 x 128 values, as they lie or transposed.  As `quant.quantize_weight_e4m3` rounds.

A CTA takes 128 rows by 128 columns at a time, by way of shared memory: a half warp loads a row; once the largest value is known, it writes
a row of codes, or a thread has two columns of 32 rows.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...blocks.cta import begin, shared_memory
from ...blocks.gemm.problem import SCALE_BLOCK
from ...blocks.quantize import PER_LANE, SCALE_LANES, f32_scale, largest_of_lanes, scaled_by
from ...device.cast import abs_max, pack_e4m3, unpack_bf16
from ...device.memory import (
    load_once_v4,
    load_shared_f32,
    load_shared_u32,
    store_f32,
    store_shared_f32,
    store_shared_v4,
    store_v2,
    store_v4,
)
from ...layouts.arith import div
from .arguments import WeightArguments
from .quantize_both import PAIRS, PART_ROWS


@cute.jit
def load_block(config: cutlass.Constexpr[Any], args: WeightArguments, smem: Int32, thread: Int32, row: Int32, column: Int32):
    """A block into shared memory.  Its words that this thread has loaded."""
    half, lane, halves = thread // SCALE_LANES, thread % SCALE_LANES, config.num_threads // SCALE_LANES
    places = [turn * halves + half for turn in range(SCALE_BLOCK // halves)]
    own = column + lane * PER_LANE
    found = [load_once_v4(args.w + (Int64(row + place) * config.problem.k + own) * 2) for place in places]
    for place, words in zip(places, found, strict=True):
        store_shared_v4(config.smem.region.address(smem, "values", place, lane * 4), words)
    return found


@cute.jit
def block_scale(config: cutlass.Constexpr[Any], smem: Int32, thread: Int32, found: Any):
    """The scale of a block, and what its values are multiplied with; every thread of the CTA takes part."""
    values = [value for words in found for word in words for value in unpack_bf16(word)]
    largest = largest_of_lanes(values, 32)
    if thread % 32 == 0:
        store_shared_f32(config.smem.region.address(smem, "maxima", thread // 32), largest)
    cute.arch.sync_threads()
    amax = Float32(0.0)
    for warp in cutlass.range_constexpr(config.num_threads // 32):
        amax = abs_max(amax, load_shared_f32(config.smem.region.address(smem, "maxima", warp)))
    return f32_scale(amax)


@cute.jit
def store_rows(
    config: cutlass.Constexpr[Any], args: WeightArguments, thread: Int32, row: Int32, column: Int32, found: Any, factor: Float32
):
    """Codes of the rows that a thread has loaded."""
    half, lane, halves = thread // SCALE_LANES, thread % SCALE_LANES, config.num_threads // SCALE_LANES
    for turn in cutlass.range_constexpr(SCALE_BLOCK // halves):
        codes = scaled_by([value for word in found[turn] for value in unpack_bf16(word)], factor)
        place = args.codes + Int64(row + turn * halves + half) * config.problem.k + column + lane * PER_LANE
        store_v2(place, pack_e4m3(*codes[:4]), pack_e4m3(*codes[4:]))


@cute.jit
def store_columns(
    config: cutlass.Constexpr[Any], args: WeightArguments, smem: Int32, thread: Int32, row: Int32, column: Int32, factor: Float32
):
    """Codes of two columns and a part of the rows, from shared memory."""
    pair, part, n = thread % PAIRS, thread // PAIRS, config.problem.n
    words = [load_shared_u32(config.smem.region.address(smem, "values", part * PART_ROWS + i, pair)) for i in range(PART_ROWS)]
    matrix = div(row, n)
    for side, values in enumerate(zip(*(unpack_bf16(word) for word in words), strict=True)):
        codes = scaled_by(values, factor)
        packed = [pack_e4m3(*codes[i : i + 4]) for i in range(0, PART_ROWS, 4)]
        line = Int64(matrix) * config.problem.k + column + 2 * pair + side
        place = args.codes + line * n + (row - matrix * n) + part * PART_ROWS
        for i in cutlass.range_constexpr(0, PART_ROWS // 4, 4):
            store_v4(place + 4 * i, tuple(packed[i : i + 4]))


@cute.kernel
def quantize_weights_kernel(config: cutlass.Constexpr[Any], args: WeightArguments):
    """One CTA: it strides over blocks of 128 x 128."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    smem, down, across = shared_memory(config.smem.region), config.problem.n // SCALE_BLOCK, config.problem.k // SCALE_BLOCK
    begin()
    for block in cutlass.range(cta, args.num_matrices * (down * across), config.num_sms, unroll=1):
        line = div(block, across)
        row, column = line * SCALE_BLOCK, (block - line * across) * SCALE_BLOCK
        found = load_block(config, args, smem, thread, row, column)
        scale, factor = block_scale(config, smem, thread, found)
        number = block
        if cutlass.const_expr(config.problem.transposed):
            matrix = div(line, down)
            number = (matrix * across + block - line * across) * down + line - matrix * down
            store_columns(config, args, smem, thread, row, column, factor)
        else:
            store_rows(config, args, thread, row, column, found, factor)
        if thread == 0:
            store_f32(args.scales + Int64(number) * 4, scale)
        cute.arch.sync_threads()

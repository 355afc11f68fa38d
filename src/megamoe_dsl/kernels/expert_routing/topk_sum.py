"""Of each token, the rows of its experts times their weights, added in the order of its slots in FP32: the same in every launch.

A warp takes 256 channels of a token at a time, eight a lane.  Waits for the launches before, the GEMM among them.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...blocks.cta import begin
from ...blocks.gemm.problem import BF16
from ...blocks.weighted_sum import PER_LANE, add_row, load_row, packed_sum
from ...device.memory import load_float, load_u32, store_v4
from ...layouts.arith import div
from .arguments import SumArguments

LANES = 32
CHUNK = LANES * PER_LANE


@cute.jit
def sum_chunk(config: cutlass.Constexpr[Any], args: SumArguments, token: Int32, channel: Int32):
    """Eight channels of a token."""
    hidden, topk, bf16 = config.problem.hidden, config.problem.topk, config.problem.weights == BF16
    total = (Float32(0.0),) * PER_LANE
    for slot in cutlass.range_constexpr(topk):
        place = Int64(token * topk + slot)
        position, weight = load_u32(args.positions + place * 4), load_float(args.weights + place * (2 if bf16 else 4), bf16)
        there = position >= 0
        words = load_row(lambda at=position: args.rows + (Int64(at) * hidden + channel) * 2, there)
        total = add_row(total, words, there, weight)
    packed = packed_sum(total)
    store_v4(args.y + (Int64(token) * (config.problem.width or hidden) + channel) * 2, packed)


@cute.kernel
def topk_sum_kernel(config: cutlass.Constexpr[Any], args: SumArguments):
    """One CTA: its warps stride over the chunks of all tokens."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    of_token, warps = -(-config.problem.hidden // CHUNK), config.num_threads // LANES
    begin()
    for chunk in cutlass.range(cta + config.num_sms * (thread // LANES), args.num_tokens * of_token, config.num_sms * warps, unroll=1):
        token = div(chunk, of_token)
        channel = (chunk - token * of_token) * CHUNK + thread % LANES * PER_LANE
        if channel < config.problem.hidden:
            sum_chunk(config, args, token, channel)

"""Tokens quantised, and their slots sorted by expert, in one launch.

The first CTA sorts; the others quantise: byte-equal to `quant.quantize_e4m3_f32`.  Sorting is stable, so that a token's rows lie where they
did in every launch: each warp has slots that follow one another, counts them by expert, and after the counts of all warps are added up
gives each its row.  Waits for nothing and signals nothing: the GEMM follows on the same stream.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.block_sort import LANES, NO_KEY, clear_counts, count, count_of_key, counts_to_places, find_place, pass_places, sum_of_block
from ...blocks.quantise import PER_LANE, quantise_f32
from ...blocks.setup import shared_memory
from ...device.launch import launch
from ...device.memory import (
    load_constant_u64,
    load_constant_v4,
    store_f32,
    store_u32,
    store_v2,
)
from ...layouts.arith import div
from ..gemm.problem import SCALE_BLOCK
from .arguments import RouteArguments
from .config import WARPS, RouteConfig

CHUNK = LANES * PER_LANE
AT_A_TIME = 8
"""Slots of a lane whose experts are on their way from memory together."""


@cute.jit
def quantise_tokens(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, warp: Int32, lane: Int32):
    """All tokens, 256 channels a warp: numbers of chunks from `warp` on."""
    channels = Int64(args.num_tokens) * config.problem.hidden
    chunks = Int32((channels + (CHUNK - 1)) // CHUNK)
    for chunk in cutlass.range(warp, chunks, (config.num_sms - 1) * WARPS, unroll=1):
        channel = Int64(chunk) * CHUNK + lane * PER_LANE
        there = channel < channels  # of the lanes that share a scale, all are or none
        words = load_constant_v4(args.x + cutlass.min(channel, channels - PER_LANE) * 2)
        low, high, scale = quantise_f32(words)
        if there:
            store_v2(args.x_q + channel, low, high)
            if channel % SCALE_BLOCK == 0:
                store_f32(args.x_sf + channel // SCALE_BLOCK * 4, scale)


def experts_of(config: RouteConfig, args: RouteArguments, slot: Any, last: Any) -> list[Int32]:
    """The experts of a lane's next slots, 32 apart, before the last; `NO_KEY` where there is none.  All are on their way from memory before
    one is looked at."""
    slots = [slot + LANES * i for i in range(AT_A_TIME)]
    named = [load_constant_u64(args.topk_idx + Int64(cutlass.min(one, last - 1)) * 8) for one in slots]
    found = []
    for one, name in zip(slots, named, strict=True):
        there = (one < last) & (name >= 0) & (name < config.problem.num_experts)
        found.append(Int32(cutlass.select_(there, Int32(name), Int32(NO_KEY))))
    return found


@cute.jit
def place_slot(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, counts: Int32, slot: Int32, last: Int32, expert: Int32):
    """A slot of each lane gets its row, in the lanes' order; `counts` are the next rows of the warp's experts."""
    found = find_place(counts, expert, lambda place: store_u32(args.sources + Int64(place) * 4, div(slot, config.problem.topk)))
    if slot < last:
        store_u32(args.positions + Int64(slot) * 4, found.place)
    pass_places(counts, expert, found)


@cute.jit
def sort_slots(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, smem: Int32, thread: Int32):
    """All slots, by one CTA."""
    region, experts = config.region, config.problem.num_experts
    warp, lane, slots = thread // LANES, thread % LANES, args.num_tokens * config.problem.topk
    counts = region.address(smem, "counts", warp)
    clear_counts(smem + region["counts"].offset, WARPS * experts, thread, config.num_threads)
    cute.arch.sync_threads()
    each = div(slots + (WARPS * LANES - 1), WARPS * LANES) * LANES
    first = cutlass.min(warp * each, slots)
    last = cutlass.min(first + each, slots)
    for start in cutlass.range(first, last, LANES * AT_A_TIME, unroll=1):
        chosen = experts_of(config, args, start + lane, last)
        for i in cutlass.range_constexpr(AT_A_TIME):
            count(counts, chosen[i])
    cute.arch.sync_threads()
    add_up(config, args, smem, thread)
    cute.arch.sync_threads()
    for start in cutlass.range(first, last, LANES * AT_A_TIME, unroll=1):
        chosen = experts_of(config, args, start + lane, last)
        for i in cutlass.range_constexpr(AT_A_TIME):
            place_slot(config, args, counts, start + lane + LANES * i, last, chosen[i])


@cute.jit
def add_up(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, smem: Int32, thread: Int32):
    """Counts of warps become their first rows, and ends of experts are stored: thread e has expert e."""
    region, experts, total = config.region, config.problem.num_experts, Int32(0)
    counter, stride = region.address(smem, "counts", 0, thread), experts * 4
    if thread < experts:
        total = count_of_key(counter, stride, WARPS)
    end = sum_of_block(total, lambda one: region.address(smem, "totals", one), thread, WARPS)
    if thread < experts:
        store_u32(args.ends + Int64(thread) * 4, end)
        counts_to_places(counter, stride, WARPS, end - total)


@cute.kernel
def route_kernel(config: cutlass.Constexpr[RouteConfig], args: RouteArguments):
    """One CTA."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    smem = shared_memory(config.region)
    if cta == 0:
        sort_slots(config, args, smem, thread)
    else:
        quantise_tokens(config, args, (cta - 1) * WARPS + thread // LANES, thread % LANES)


@cute.jit
def route(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, stream: Any):
    """Launches the kernel."""
    launch(route_kernel(config, args), config, stream)

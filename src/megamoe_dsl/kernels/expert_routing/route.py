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

from ...blocks.quantise import PER_LANE, quantise_f32
from ...blocks.setup import shared_memory
from ...device.launch import launch
from ...device.memory import (
    load_constant_u64,
    load_constant_v4,
    load_shared_u32,
    reduce_add_shared,
    store_f32,
    store_shared_u32,
    store_u32,
    store_v2,
)
from ...device.warp import lanes_below, match_lanes, popc, shuffle_up, sync_warp
from ...layouts.arith import div
from ..gemm.problem import SCALE_BLOCK
from .arguments import RouteArguments
from .config import WARPS, RouteConfig

LANES = 32
CHUNK = LANES * PER_LANE
MASKED = -1
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
    """The experts of a lane's next slots, 32 apart, before the last; `MASKED` where there is none.  All are on their way from memory before
    one is looked at."""
    slots = [slot + LANES * i for i in range(AT_A_TIME)]
    named = [load_constant_u64(args.topk_idx + Int64(cutlass.min(one, last - 1)) * 8) for one in slots]
    found = []
    for one, name in zip(slots, named, strict=True):
        there = (one < last) & (name >= 0) & (name < config.problem.num_experts)
        found.append(Int32(cutlass.select_(there, Int32(name), Int32(MASKED))))
    return found


@cute.jit
def count_slot(counts: Int32, expert: Int32):
    """Of the warp whose counts these are."""
    if expert != MASKED:
        reduce_add_shared(counts + expert * 4, 1)


@cute.jit
def place_slot(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, counts: Int32, slot: Int32, last: Int32, expert: Int32):
    """A slot of each lane gets its row, in the lanes' order; `counts` are the next rows of the warp's experts."""
    same = match_lanes(expert)
    before, position = popc(same & lanes_below()), Int32(MASKED)
    if expert != MASKED:
        position = load_shared_u32(counts + expert * 4) + before
        store_u32(args.sources + Int64(position) * 4, div(slot, config.problem.topk))
    if slot < last:
        store_u32(args.positions + Int64(slot) * 4, position)
    sync_warp()
    if (expert != MASKED) & (before == 0):
        store_shared_u32(counts + expert * 4, position + popc(same))
    sync_warp()


@cute.jit
def sort_slots(config: cutlass.Constexpr[RouteConfig], args: RouteArguments, smem: Int32, thread: Int32):
    """All slots, by one CTA."""
    region, experts = config.region, config.problem.num_experts
    warp, lane, slots = thread // LANES, thread % LANES, args.num_tokens * config.problem.topk
    counts = region.address(smem, "counts", warp)
    for index in cutlass.range(thread, WARPS * experts, config.num_threads, unroll=1):
        store_shared_u32(smem + region["counts"].offset + index * 4, 0)
    cute.arch.sync_threads()
    each = div(slots + (WARPS * LANES - 1), WARPS * LANES) * LANES
    first = cutlass.min(warp * each, slots)
    last = cutlass.min(first + each, slots)
    for start in cutlass.range(first, last, LANES * AT_A_TIME, unroll=1):
        chosen = experts_of(config, args, start + lane, last)
        for i in cutlass.range_constexpr(AT_A_TIME):
            count_slot(counts, chosen[i])
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
    region, experts = config.region, config.problem.num_experts
    warp, lane, total = thread // LANES, thread % LANES, Int32(0)
    if thread < experts:
        for one in cutlass.range_constexpr(WARPS):
            total = total + load_shared_u32(region.address(smem, "counts", one, thread))
    end = total
    for step in (1, 2, 4, 8, 16):
        end = end + shuffle_up(end, step)
    if lane == LANES - 1:
        store_shared_u32(region.address(smem, "totals", warp), end)
    cute.arch.sync_threads()
    for one in cutlass.range_constexpr(WARPS):
        of_warp = load_shared_u32(region.address(smem, "totals", one))
        end = end + cutlass.select_(warp > one, of_warp, Int32(0))
    if thread < experts:
        store_u32(args.ends + Int64(thread) * 4, end)
        row = end - total
        for one in cutlass.range_constexpr(WARPS):
            place = region.address(smem, "counts", one, thread)
            count = load_shared_u32(place)
            store_shared_u32(place, row)
            row = row + count


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

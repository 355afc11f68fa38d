"""Tokens quantized, if their format has scales, and their slots sorted by expert, in one launch.

The first CTAs sort, as many as there are slots for; the others quantize, byte-equal to `quant`.  Sorting is stable: each warp has slots
that follow one another, counts them by expert, and after the counts of all warps are added up gives each its row.  CTAs that sort leave
one another their counts in a table and meet once at a counter, which the last of them sets back to 0.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.block_sort import LANES, NO_KEY, clear_counts, count, count_of_key, counts_to_places, find_place, pass_places, sum_of_block
from ...blocks.cta import begin, shared_memory
from ...blocks.gemm.problem import I32
from ...blocks.quantize import PER_LANE, quantize, store_codes
from ...device.memory import (
    atomic_add_u32,
    load_acquire_u32,
    load_f32,
    load_once_v4,
    load_u32,
    load_u64,
    reduce_add_u32,
    store_f32,
    store_u8,
    store_u32,
)
from ...layouts.arith import div
from ...recipe import F32
from .config import WARPS, RouteConfig

CHUNK = LANES * PER_LANE
AT_A_TIME = 8  # slots of a lane whose experts are on their way from memory together


@cute.jit
def quantize_tokens(config: cutlass.Constexpr[RouteConfig], args: Any, warp: Int32, warps: Int32, lane: Int32):
    """All tokens, 256 channels a warp: numbers of chunks from `warp` on, of which each of `warps` has its own."""
    channels = Int64(args.num_tokens) * config.problem.hidden
    chunks = Int32((channels + (CHUNK - 1)) // CHUNK)
    form = config.problem.formats.activations
    factor = load_f32(args.factor) if form.factor else None
    for chunk in cutlass.range(warp, chunks, warps, unroll=1):
        channel = Int64(chunk) * CHUNK + lane * PER_LANE
        there = channel < channels  # of the lanes that share a scale, all are or none
        words = load_once_v4(args.x + cutlass.min(channel, channels - PER_LANE) * 2)
        packed, scale = quantize(form, words, factor)
        if there:
            store_codes(form, args.x_q, channel, packed)
            if channel % form.channels == 0:
                if cutlass.const_expr(form.scale == F32):
                    store_f32(args.x_sf + channel // form.channels * 4, scale)
                else:
                    store_u8(args.x_sf + channel // form.channels, scale)


def experts_of(config: RouteConfig, args: Any, slot: Any, last: Any) -> list[Int32]:
    """Experts of a lane's next slots, 32 apart, before the last; `NO_KEY` without one.  All are on their way before one is looked at."""
    slots = [slot + LANES * i for i in range(AT_A_TIME)]
    load, size = (load_u32, 4) if config.indices == I32 else (load_u64, 8)
    named = [load(args.topk_idx + Int64(cutlass.min(one, last - 1)) * size) for one in slots]
    found = []
    for one, name in zip(slots, named, strict=True):
        there = (one < last) & (name >= 0) & (name < config.problem.num_experts)
        found.append(Int32(cutlass.select_(there, Int32(name), Int32(NO_KEY))))
    return found


@cute.jit
def place_slot(config: cutlass.Constexpr[RouteConfig], args: Any, counts: Int32, slot: Int32, last: Int32, expert: Int32):
    """A slot of each lane gets its row, in the lanes' order; `counts` are the next rows of the warp's experts."""
    found = find_place(counts, expert, lambda place: store_u32(args.sources + Int64(place) * 4, div(slot, config.problem.topk)))
    if slot < last:
        store_u32(args.positions + Int64(slot) * 4, found[0])
    pass_places(counts, expert, *found)


@cute.jit
def sort_slots(config: cutlass.Constexpr[RouteConfig], args: Any, smem: Int32, thread: Int32, cta: Int32, ctas: Int32):
    """All slots, by `ctas` CTAs, of which this is one."""
    region, experts = config.smem.region, config.problem.num_experts
    warp, lane, slots = thread // LANES, thread % LANES, args.num_tokens * config.problem.topk
    counts = region.address(smem, "counts", warp)
    clear_counts(smem + region["counts"].offset, WARPS * experts, thread, config.num_threads)
    cute.arch.sync_threads()
    lanes = ctas * (WARPS * LANES)
    each = (slots + (lanes - 1)) // lanes * LANES
    first = cutlass.min((cta * WARPS + warp) * each, slots)
    last = cutlass.min(first + each, slots)
    for start in cutlass.range(first, last, LANES * AT_A_TIME, unroll=1):
        chosen = experts_of(config, args, start + lane, last)
        for i in cutlass.range_constexpr(AT_A_TIME):
            count(counts, chosen[i])
    cute.arch.sync_threads()
    add_up(config, args, smem, thread, cta, ctas)
    cute.arch.sync_threads()
    for start in cutlass.range(first, last, LANES * AT_A_TIME, unroll=1):
        chosen = experts_of(config, args, start + lane, last)
        for i in cutlass.range_constexpr(AT_A_TIME):
            place_slot(config, args, counts, start + lane + LANES * i, last, chosen[i])


@cute.jit
def meet(counter: Int64, ctas: Int32, thread: Int32):
    """All threads of so many CTAs: what any of them wrote before is visible to all of them after."""
    cute.arch.sync_threads()
    if thread == 0:
        reduce_add_u32(counter, 1, "release", "gpu")
        while load_acquire_u32(counter, "gpu") < ctas:
            pass
        # Who has seen all counts again; when the last does, nobody waits any more.
        if atomic_add_u32(counter, 1) == 2 * ctas - 1:
            reduce_add_u32(counter, 0 - 2 * ctas, "relaxed", "gpu")
    cute.arch.sync_threads()


@cute.jit
def of_all_ctas(config: cutlass.Constexpr[RouteConfig], args: Any, total: Int32, thread: Int32, cta: Int32, ctas: Int32):
    """From each CTA's slots of an expert, a thread's, those of the CTAs before this one and those of all."""
    experts = config.problem.num_experts
    place = args.table + Int64(thread) * 4
    if thread < experts:
        store_u32(place + Int64(cta * experts) * 4, total)
    meet(args.counter, ctas, thread)
    before, of_all = Int32(0), Int32(0)
    if thread < experts:
        for other in cutlass.range_constexpr(config.sorters):
            number = load_u32(place + Int64(cutlass.min(Int32(other), ctas - 1) * experts) * 4)
            before = before + cutlass.select_(cta > other, number, Int32(0))
            of_all = of_all + cutlass.select_(ctas > other, number, Int32(0))
    return before, of_all


@cute.jit
def add_up(config: cutlass.Constexpr[RouteConfig], args: Any, smem: Int32, thread: Int32, cta: Int32, ctas: Int32):
    """Counts of warps become their first rows, and ends of experts are stored: thread e has expert e."""
    region, experts = config.smem.region, config.problem.num_experts
    counter, stride, total = region.address(smem, "counts", 0, thread), experts * 4, Int32(0)
    if thread < experts:
        total = count_of_key(counter, stride, WARPS)
    before, of_all = Int32(0), total
    if ctas > 1:
        before, of_all = of_all_ctas(config, args, total, thread, cta, ctas)
    end = sum_of_block(of_all, lambda one: region.address(smem, "totals", one), thread, WARPS)
    if thread < experts:
        if cta == 0:
            store_u32(args.ends + Int64(thread) * 4, end)
        counts_to_places(counter, stride, WARPS, end - of_all + before)


@cute.kernel
def route_kernel(config: cutlass.Constexpr[RouteConfig], args: Any):
    """The first CTAs sort slots, the others quantize tokens."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    smem, slots, each = shared_memory(config.smem.region), args.num_tokens * config.problem.topk, config.slots_per_sorter
    # As many CTAs sort as have slots, up to `sorters`; one at least, for the ends.
    ctas = cutlass.max(cutlass.min(div(slots + (each - 1), each), Int32(config.sorters)), Int32(1))
    begin()
    if cta < ctas:
        sort_slots(config, args, smem, thread, cta, ctas)
    elif cutlass.const_expr(config.problem.formats.scaled):
        warp, warps = (cta - ctas) * WARPS + thread // LANES, (config.num_sms - ctas) * WARPS
        quantize_tokens(config, args, warp, warps, thread % LANES)

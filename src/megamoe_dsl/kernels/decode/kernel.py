"""The layer of a few tokens in one launch: warps to roles, set-up of a CTA.  Only this file knows warp indices.

Before the roles begin every CTA finds which rows belong together: the experts of the slots, and each expert's slots in tiles of `block_m`
rows, a thread a slot, in shared memory.  Warp 0 takes tiles and loads weights, `row_warps` for each warpgroup that multiplies load rows,
and the last 8 are those warpgroups.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...blocks.cta import WarpRole, begin, init_barriers, run_roles, shared_memory
from ...blocks.gemm.context import prefetch_maps
from ...blocks.gemm.problem import BF16, I32
from ...blocks.weighted_sum import PER_LANE
from ...device.e2m1 import store_table
from ...device.launch import addresses
from ...device.memory import (
    VECTOR,
    fence_async_shared,
    load_float,
    load_shared_u32,
    load_shared_v4,
    load_u32,
    load_u64,
    reduce_add_shared,
    reduce_add_u32,
    store_shared_f32,
    store_shared_u16,
    store_shared_u32,
    store_shared_v2,
    store_shared_v4,
    store_v4,
)
from ...device.warp import ballot, lanes_below, popc
from .config import ABSENT, GROUPS, DecodeConfig
from .context import DecodeContext
from .load import claim, load_rows, load_weights
from .math import math
from .problem import DecodeArguments

MASKED = -1


@cute.jit
def expert_of(ctx: DecodeContext, slot: Int32) -> Int32:
    """The expert that a slot names, or `MASKED`; past the last slot, too."""
    config, args = ctx.config, ctx.args
    load, size = (load_u32, 4) if config.indices == I32 else (load_u64, 8)
    found = Int32(MASKED)
    if slot < args.num_tokens * config.problem.topk:
        name = load(args.topk_idx + Int64(slot) * size)
        if (name >= 0) & (name < config.problem.num_experts):
            found = Int32(name)
    return found


@cute.jit
def weight_of(ctx: DecodeContext, slot: Int32) -> Float32:
    """A slot's top-k weight; past the last slot, zero."""
    config, args = ctx.config, ctx.args
    bf16, weight = config.weights == BF16, Float32(0.0)
    if slot < args.num_tokens * config.problem.topk:
        weight = load_float(args.topk_weights + Int64(slot) * (2 if bf16 else 4), bf16)
    return weight


@cute.jit
def find_blocks(ctx: DecodeContext, thread: Int32, expert: Int32, weight: Float32) -> Int32:
    """All threads of the CTA, with expert and weight of the slot that has the thread's number.  Returns the number of tiles of rows."""
    config = ctx.config
    capacity = config.region["expert_of"].field.shape[0]
    if thread < capacity:
        store_shared_u32(ctx.shared("expert_of", thread), expert)
        store_shared_f32(ctx.shared("weight_of", thread), weight)
        store_shared_u32(ctx.shared("counts", thread), 0)
    cute.arch.sync_threads()
    before, first = Int32(0), thread
    if thread < config.slots:
        # Slots of the expert before this one; every `block_m`-th begins a tile.
        for start in cutlass.range(0, thread, 4, unroll=1):
            others = load_shared_v4(ctx.shared("expert_of", start))
            for i in cutlass.range_constexpr(4):
                same = (Int32(others[i]) == expert) & (start + i < thread)
                begins = same & ((before & (config.block_m - 1)) == 0)
                first = Int32(cutlass.select_(begins, start + i, first))
                before = before + Int32(cutlass.select_(same, Int32(1), Int32(0)))
    row = before & (config.block_m - 1)
    begins = (expert != MASKED) & (row == 0)
    lane, warp = cute.arch.lane_idx(), thread // 32
    leaders = ballot(Int32(begins))
    if lane == 0:
        store_shared_u32(ctx.shared("totals", warp), popc(leaders))
    cute.arch.sync_threads()
    block, blocks = popc(leaders & lanes_below()), Int32(0)
    for other in cutlass.range_constexpr(-(-config.slots // 32)):
        count = load_shared_u32(ctx.shared("totals", other))
        block = block + Int32(cutlass.select_(warp > other, count, Int32(0)))
        blocks = blocks + count
    if begins:
        store_shared_u32(ctx.shared("block_of", thread), block)
        store_shared_u32(ctx.shared("experts", block), expert)
    cute.arch.sync_threads()
    if expert != MASKED:
        own = load_shared_u32(ctx.shared("block_of", Int32(cutlass.select_(row == 0, thread, first))))
        store_shared_u16(ctx.shared("slots", own, row), thread)
        reduce_add_shared(ctx.shared("counts", own), 1)
    cute.arch.sync_threads()
    return blocks


@cute.jit
def initialize(ctx: DecodeContext, warp: Any, thread: Int32):
    """mbarriers, and zeros where rows and scales will lie: a tile leaves the rows that it does not have as they are."""
    if warp == 0:
        init_barriers(ctx)
    if warp == 1:
        prefetch_maps(ctx)
    if cutlass.const_expr(ctx.config.source.part is not None):
        if warp == 2:
            store_table(ctx.shared("decoded"))
    region = ctx.config.region
    for name in ("tokens", "sfa"):
        placed = region[name]
        for start in cutlass.range(thread * VECTOR, placed.field.num_bytes, ctx.config.num_threads * VECTOR, unroll=1):
            store_shared_v4(ctx.smem + placed.offset + start, (Int32(0),) * 4)
    fence_async_shared()
    cute.arch.sync_threads()


@cute.jit
def clear(ctx: DecodeContext, thread: Int32, blocks: Int32, region: Int32):
    """The other region of results; y, where every slot is masked.  Counts rows."""
    config, before = ctx.config, ctx.writing_in(region).results
    first, threads = ctx.cta * config.num_threads + thread, config.num_sms * config.num_threads
    for chunk in cutlass.range(first, config.results.size // VECTOR, threads, unroll=1):
        store_v4(before + Int64(chunk) * VECTOR, (Int32(ABSENT),) * 4)
    if (first < blocks) & (ctx.args.stats != 0):
        expert, count = (load_shared_u32(ctx.shared(name, first)) for name in ("experts", "counts"))
        reduce_add_u32(ctx.args.stats + Int64(expert) * 4, count, "relaxed", "gpu")
    if blocks == 0:
        chunks = ctx.args.num_tokens * (config.problem.hidden // PER_LANE)
        for chunk in cutlass.range(first, chunks, threads, unroll=1):
            store_v4(ctx.args.y + Int64(chunk) * VECTOR, (Int32(0),) * 4)


def roles(config: DecodeConfig, claimed: Int32, blocks: Int32) -> tuple[WarpRole, ...]:
    """All warps of a CTA, that has `claimed` a first tile, of so many `blocks` of rows."""
    loaders, rows_end = config.loader_warps, 1 + GROUPS * config.source.row_warps
    return (
        WarpRole("weight loader", range(1), lambda ctx, warp: load_weights(ctx, claimed, blocks)),
        WarpRole("row loaders", range(1, rows_end), lambda ctx, warp: load_rows(ctx, warp - 1)),
        WarpRole("nothing", range(rows_end, loaders), lambda ctx, warp: None),
        WarpRole("math", None, lambda ctx, warp: math(ctx, warp - loaders)),
    )


@cute.jit
def run(ctx: DecodeContext, warp: Any, thread: Int32):
    """One CTA, which finds out what tokens need before its roles begin."""
    initialize(ctx, warp, thread)
    begin()
    claimed = Int32(0)
    if warp == 0:
        claimed = claim(ctx)
    blocks = find_blocks(ctx, thread, expert_of(ctx, thread), weight_of(ctx, thread))
    if thread == 0:
        store_shared_v2(ctx.shared("blocks"), blocks, claimed)
    cute.arch.sync_threads()
    claimed = load_shared_u32(ctx.shared("blocks", 1))
    region = Int32(cutlass.select_(claimed < 0, Int32(1), Int32(0)))
    clear(ctx, thread, blocks, 1 - region)
    run_roles(roles(ctx.config, claimed, blocks), ctx.writing_in(region), warp)


def decode_kernel(config: DecodeConfig, args: DecodeArguments, *maps: Any) -> None:
    """One CTA, from its place in the grid on."""
    warp, thread = cute.arch.warp_idx(), Int32(cute.arch.thread_idx()[0])
    places = addresses(config.map_names, maps)
    cta = Int32(cute.arch.block_idx()[0])
    run(DecodeContext(config, args, places, shared_memory(config.region), cta, args.memory), warp, thread)

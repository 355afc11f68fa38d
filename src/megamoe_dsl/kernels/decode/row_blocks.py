"""Which rows belong together: the experts of the slots, and each expert's slots in tiles of `block_m` rows, a thread a slot, in shared
memory of every CTA."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...blocks.gemm.problem import BF16, I32
from ...device.memory import (
    load_float,
    load_shared_u32,
    load_shared_v4,
    load_u32,
    load_u64,
    reduce_add_shared,
    store_shared_f32,
    store_shared_u16,
    store_shared_u32,
)
from ...device.warp import ballot, lanes_below, popc
from .context import DecodeContext

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
    capacity = config.smem.region["expert_of"].field.shape[0]
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

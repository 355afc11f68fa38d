"""Combine: the sum of a token's top-k results, on its own rank (article 4.5.6).

waits     combine barriers of the warp, per chunk   (the rank barrier BEFORE_COMBINE has passed)
One warp per token.  A chunk of channels at a time: top-k slots through two SMEM buffers, FP32 sums in ascending slot order in registers,
BF16 once, out by TMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...device.cast import pack_bf16, unpack_bf16
from ...device.mbarrier import arrive_expect, wait
from ...device.memory import (
    fence_async_global,
    fence_async_shared,
    load_constant_u64,
    load_shared_v4,
    store_shared_v4,
)
from ...device.ring import Ring
from ...device.tma import commit_group, load_bytes, store_bytes, wait_group_read
from ...device.warp import ballot, elect, lowest_bit, popc, sync_warp
from ...layouts.arith import select
from ...layouts.combine_vectors import VECTOR, vector_address
from ...layouts.smem_plan import combine_chunk
from .context import Context

LOAD_SLOTS = 2
STORE_SLOT = 2


@dataclass(frozen=True)
class Sums:
    """FP32 sums of a lane: channels [256 j + 8 lane, + 8) of the chunk for each vector j."""

    values: tuple[Float32, ...]

    @staticmethod
    def zero(count: int) -> Sums:
        return Sums(tuple(Float32(0.0) for _ in range(count)))


@dataclass(frozen=True)
class Loads:
    """Slots still to load (bit mask) and where the next one goes."""

    mask: Int32
    ring: Ring


@cute.jit
def combine_tokens(ctx: Context, warp: Int32, lane: Int32):
    """One epilogue warp."""
    config, problem = ctx.config, ctx.config.problem
    # Other ranks wrote the rows through the generic proxy.
    fence_async_global()
    chunk = combine_chunk(problem.hidden)
    ring = Ring.start(LOAD_SLOTS)
    for token in cutlass.range(
        ctx.sm * config.epilogue_warps + warp, ctx.args.num_tokens, config.num_sms * config.epilogue_warps, unroll=1
    ):
        chosen = Int32(0)
        if lane < problem.topk:
            chosen = Int32(load_constant_u64(ctx.at("topk_idx", token, lane)) >= 0)
        mask = ballot(chosen)
        for first in cutlass.range(0, problem.hidden, chunk, unroll=1):
            ring = combine_one(ctx, warp, lane, token, first, mask, ring)
    if lane == 0:
        wait_group_read(0)
    sync_warp()


@cute.jit
def load_next(ctx: Context, loads: Loads, warp: Int32, token: Int32, first: Int32) -> Loads:
    """Starts the load of the lowest slot in the mask, if there is one."""
    num_bytes = ctx.config.smem.combine_chunk_bytes
    some = loads.mask != 0
    if some:
        if elect():
            barrier = ctx.barrier("combine", warp * LOAD_SLOTS + loads.ring.index)
            arrive_expect(barrier, num_bytes)
            source = ctx.at("combine", lowest_bit(loads.mask), token) + Int64(first) * 2
            load_bytes(ctx.shared("combine_slots", warp, loads.ring.index), source, num_bytes, barrier)
    following = loads.ring.next()
    ring = Ring(LOAD_SLOTS, select(some, following.index, loads.ring.index), select(some, following.phase, loads.ring.phase))
    return Loads(loads.mask & (loads.mask - 1), ring)


def add(sums: Sums, slot: Any, lane: Any) -> Sums:
    """One SMEM chunk added to the sums."""
    values = list(sums.values)
    for j in range(len(values) // VECTOR):
        words = load_shared_v4(vector_address(slot, lane, j))
        for i, word in enumerate(words):
            for h, x in enumerate(unpack_bf16(word)):
                values[j * VECTOR + 2 * i + h] = values[j * VECTOR + 2 * i + h] + x
    return Sums(tuple(values))


@cute.jit
def combine_one(ctx: Context, warp: Int32, lane: Int32, token: Int32, first: Int32, mask: Int32, ring: Ring) -> Ring:
    """One chunk of one token."""
    chunk = combine_chunk(ctx.config.problem.hidden)
    loads = load_next(ctx, Loads(mask, ring), warp, token, first)
    sums = Sums.zero(chunk // 32)
    slots = popc(mask)
    while slots > 0:
        loads = load_next(ctx, loads, warp, token, first)
        wait(ctx.barrier("combine", warp * LOAD_SLOTS + ring.index), ring.phase)
        sums = add(sums, ctx.shared("combine_slots", warp, ring.index), lane)
        sync_warp()
        ring = ring.next()
        slots = slots - 1
    out = ctx.shared("combine_slots", warp, STORE_SLOT)
    if lane == 0:
        wait_group_read(0)
    sync_warp()
    v = sums.values
    for j in cutlass.range_constexpr(len(v) // VECTOR):
        store_shared_v4(vector_address(out, lane, j), tuple(pack_bf16(v[j * VECTOR + 2 * i], v[j * VECTOR + 2 * i + 1]) for i in range(4)))
    fence_async_shared()
    sync_warp()
    if lane == 0:
        destination = ctx.args.y + (Int64(token) * ctx.config.problem.hidden + Int64(first)) * 2
        store_bytes(destination, out, ctx.config.smem.combine_chunk_bytes)
        commit_group()
    return ring

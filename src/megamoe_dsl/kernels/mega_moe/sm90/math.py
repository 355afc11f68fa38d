"""The math warpgroups of SM90: wgmma with FP32 promotion, both epilogues, then combine.

waits     counts, once; full, per stage; L1 arrival count, per tile (acquires what dispatch wrote for the tile's tokens)
signals   empty, per stage and warp; see the tile functions for the rest

A warpgroup multiplies its 128 weight rows, as two blocks of 64, with all tokens of the tile.  A 128-K partial sum of a block lands in a
temporary accumulator and is then scaled and added in FP32 (the tensor core keeps about 14 bits); meanwhile the other warpgroup's wgmmas
run.  The wait for the next stage happens while the last block of this one is still in the tensor core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....device import wgmma
from ....device.mbarrier import arrive, wait
from ....device.memory import fence_async_shared, load_f32, load_shared_f32x2
from ....device.ring import Ring
from ....device.sync import Equals32, spin
from ....device.warp import named_barrier, shuffle_f32
from ....layouts.arith import select
from ....layouts.barriers import NamedBarrier
from ....layouts.smem_plan_sm90 import MATH_WARPGROUPS
from ....layouts.watchdog import Wait
from ....layouts.workspace import RankBarrier
from ....schedule import LINEAR1
from ..combine import combine_tokens
from ..rank_barrier import Group, rank_barrier
from ..table import Walk, next_block, start_walk
from .context import MathThread, Sm90Context
from .epilogue_l1 import finish_l1
from .epilogue_l2 import finish_l2

BLOCKS = 2  # of 64 weight rows per warpgroup
BLOCK_BYTES = 64 * 128
THREADS = 128 * MATH_WARPGROUPS


@dataclass(frozen=True)
class Accumulator:
    """FP32 sums of a thread.  Value (4 j + 2 h + q) of block b: row + 8 h of the block, token 8 j + pair + q."""

    blocks: tuple[tuple[Float32, ...], ...]

    @staticmethod
    def zero(block_m: int) -> Accumulator:
        return Accumulator(tuple(tuple(Float32(0.0) for _ in range(block_m // 2)) for _ in range(BLOCKS)))


@dataclass(frozen=True)
class WeightScales:
    """Scales of the thread's rows: lane l holds K blocks l and l + 32, for rows h = 0 and h = 1 (gate and up in Linear1)."""

    values: tuple[tuple[Float32, ...], ...]

    def at(self, k: Any) -> list[Any]:
        """Scales of K block k."""
        out = []
        for parts in self.values:
            value = parts[0]
            for i, part in enumerate(parts[1:]):
                value = Float32(cutlass.select_(k >= 32 * (i + 1), part, value))
            out.append(shuffle_f32(value, k & 31))
        return out


@cute.jit
def math(ctx: Sm90Context, thread: Int32):
    """All math warps; `thread` counts within them."""
    config = ctx.config
    me = MathThread(thread >> 7, (thread >> 5) & 3, thread & 31)
    blocks = start_walk(ctx, Int32(0), 1)
    ring = Ring.start(config.num_stages)
    stores = Ring.start(1)
    while blocks.valid():
        scales = weight_scales(ctx, blocks, me)
        acc = Accumulator.zero(config.block_m)
        wait(ctx.barrier("full", ring.index), ring.phase)
        k_blocks = select(blocks.phase == LINEAR1, Int32(config.l1_k_blocks), Int32(config.l2_k_blocks))
        for k in cutlass.range(k_blocks, unroll=1):
            acc, ring = multiply(ctx, me, acc, scales, ring, k, k + 1 < k_blocks)
        count = Equals32(ctx.at("l1_arrival_count", blocks.pool_block), blocks.valid_m, "gpu")
        spin(count, ctx.watchdog, Wait.L1_ARRIVAL, blocks.pool_block)
        # The staging buffer belongs to the store warp until it has read the last L1 tile.
        wait(ctx.barrier("store_empty"), stores.phase ^ 1)
        if blocks.phase == LINEAR1:
            finish_l1(ctx, blocks, me, acc.blocks)
            stores = stores.next()
        else:
            finish_l2(ctx, blocks, me, acc.blocks)
        blocks = next_block(blocks)

    rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, THREADS, thread), RankBarrier.BEFORE_COMBINE)
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, config.num_threads - 128)
    combine_tokens(ctx, thread >> 5, me.lane)


@cute.jit
def weight_scales(ctx: Sm90Context, blocks: Walk, me: MathThread) -> WeightScales:
    """Loaded once per tile by the lanes; a load per K block would put a wait before every wgmma wait."""
    config, problem = ctx.config, ctx.config.problem
    is_l1 = blocks.phase == LINEAR1
    k_blocks = select(is_l1, Int32(config.l1_k_blocks), Int32(config.l2_k_blocks))
    row_blocks = select(is_l1, Int32(2 * problem.intermediate // 128), Int32(problem.hidden // 128))
    up = problem.intermediate // 128  # from a gate block to its up block
    first = blocks.expert * row_blocks + select(is_l1, blocks.n_block, blocks.n_block * 2 + me.group)
    base = Int64(cutlass.select_(is_l1, ctx.args.l1_sf, ctx.args.l2_sf))
    starts = range(0, max(config.l1_k_blocks, config.l2_k_blocks), 32)
    rows = (first, select(is_l1, first + up, first))
    values = [[load_f32(base + Int64(r * k_blocks + cutlass.min(me.lane + s, k_blocks - 1)) * 4) for s in starts] for r in rows]
    return WeightScales(tuple(tuple(parts) for parts in values))


@cute.jit
def multiply(ctx: Sm90Context, me: MathThread, acc: Accumulator, scales: WeightScales, ring: Ring, k: Int32, more: cutlass.Boolean):
    """One K block; its stage is full.  Returns with the next stage full, if there are `more`."""
    config = ctx.config
    weights = ctx.shared("weights", ring.index) + me.group * (BLOCKS * BLOCK_BYTES)
    tokens = wgmma.descriptor(ctx.shared("tokens", ring.index) >> 4)
    token_scales = ctx.shared("sfa", ring.index) + me.pair * 4
    row_scales = scales.at(k)
    following = ring.next()
    sums = []
    for b in cutlass.range_constexpr(BLOCKS):
        partial = wgmma.issue(wgmma.descriptor((weights + b * BLOCK_BYTES) >> 4), tokens, config.block_m)
        if cutlass.const_expr(b == BLOCKS - 1):
            if more:
                wait(ctx.barrier("full", following.index), following.phase)
        partial = wgmma.wait(partial)
        sums.append(promote(acc.blocks[b], partial, token_scales, row_scales))
    if me.lane == 0:
        arrive(ctx.barrier("empty", ring.index))
    return Accumulator(tuple(sums)), following


def promote(sums: Any, partial: Any, token_scales: Any, row_scales: list[Any]) -> tuple[Any, ...]:
    """sums + partial * token scale * row scale."""
    out = []
    for j in range(len(sums) // 4):
        per_token = load_shared_f32x2(token_scales + 32 * j)
        for h in range(2):
            for q in range(2):
                i = 4 * j + 2 * h + q
                out.append(sums[i] + partial[i] * (per_token[q] * row_scales[h]))
    return tuple(out)

"""The layer of a few tokens in one launch: warps to roles, set-up of a CTA.  Only this file knows warp indices.

Before the roles begin every CTA finds which rows belong together (row_blocks.py).  Warp 0 takes tiles and loads weights, `row_warps` for
each warpgroup that multiplies load rows, and the last 8 are those warpgroups.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.cta import WarpRole, begin, init_barriers, run_roles, shared_memory
from ...blocks.gemm.context import prefetch_maps
from ...blocks.weighted_sum import PER_LANE
from ...device.e2m1 import store_table
from ...device.launch import addresses
from ...device.memory import VECTOR, fence_async_shared, load_shared_u32, reduce_add_u32, store_shared_v2, store_shared_v4, store_v4
from .config import ABSENT, GROUPS, DecodeConfig
from .context import DecodeContext
from .load import claim, load_rows, load_weights
from .math import math
from .problem import DecodeArguments
from .row_blocks import expert_of, find_blocks, weight_of


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
    region = ctx.config.smem.region
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
    places, cta = addresses(config.map_names, maps), Int32(cute.arch.block_idx()[0])
    run(DecodeContext(config, args, places, shared_memory(config.smem.region), cta, args.memory), warp, thread)

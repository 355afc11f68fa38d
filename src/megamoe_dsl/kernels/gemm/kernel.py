"""The GEMM kernels: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

SM90: the first four warps load and schedule (`loader_roles`); math warps follow; the last four gather rows, or decode B where math warps
do not.  SM100: the first four load, multiply and schedule (blocks/sm100/pair_warps.py); over the rows of experts four that gather follow,
and the first warp lists rows for them; the last are the epilogue's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blocks.cta import (
    WarpRole,
    begin,
    begin_after_others,
    end_together,
    init_barriers,
    one_warp,
    run_roles,
    set_up,
    set_up_together,
    shared_memory,
    warp_group,
)
from ...blocks.gemm.arguments import GemmArguments
from ...blocks.gemm.config import LOADER_WARPS, GemmConfig
from ...blocks.gemm.context import GemmContext, prefetch_maps, rank_in_cluster
from ...blocks.gemm.math import math
from ...blocks.gemm.sm100.epilogue import epilogue
from ...blocks.gemm.sm100.load import issue_mma
from ...blocks.gemm.tile import WARPS_PER_GROUP
from ...blocks.gemm.tile_scheduler import fill_tables, schedule_tiles
from ...blocks.sm100 import pair_warps
from ...device.e2m1 import store_table
from ...device.launch import addresses
from ...device.tma import wait_group_read

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP = range(3)


@cute.jit
def initialize(ctx: GemmContext, warp: Any):
    """mbarriers and the table of decoded values, visible to the cluster and to TMA."""
    decoded = ((SCHEDULER_WARP, lambda ctx: store_table(ctx.shared("decoded"))),) if ctx.config.problem.decodes else ()
    set_up(ctx, warp, ((WEIGHTS_WARP, init_barriers), (TOKENS_WARP, prefetch_maps), *decoded))
    if cutlass.const_expr(ctx.config.problem.of_experts):
        begin_after_others()  # Linear2, which may follow, has its weights on their way before it waits
        if cutlass.const_expr(ctx.config.has_own_table):
            if warp == SCHEDULER_WARP:
                fill_tables(ctx)
            set_up_together(ctx)
    elif cutlass.const_expr(ctx.config.prefetch_weights):
        # The scheduler reads where rows of groups lie, and deals tiles from a counter that the launch before has not; the weight loader
        # reads B.  Neither reads what the launch before writes, nor writes what it reads: they do not wait for it.
        if warp != SCHEDULER_WARP:
            if warp != WEIGHTS_WARP:
                begin_after_others()
    else:
        begin()


@cute.jit
def initialize_pair(ctx: GemmContext, warp: Any):
    """mbarriers, tables of rows and TMEM, visible to the pair; each CTA has its own tables."""
    if warp == pair_warps.WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == pair_warps.TOKENS_WARP:
        prefetch_maps(ctx)
    begin()
    # Only now: a launch that has not ended may hold tensor memory of this SM.
    if warp == pair_warps.SCHEDULER_WARP:
        pair_warps.allocate_columns(ctx)
        if cutlass.const_expr(ctx.config.has_own_table):
            fill_tables(ctx)
    set_up_together(ctx)


def loader_roles(config: GemmConfig) -> tuple[WarpRole, ...]:
    """The warps that do not multiply."""
    weights = one_warp("weight loader", WEIGHTS_WARP, config.weights.load)
    scheduler = one_warp("scheduler", SCHEDULER_WARP, schedule_tiles)
    numbers = () if config.rows.own_warps else (TOKENS_WARP, None)[: config.rows.warps]
    tokens = tuple(one_warp("token loader", warp, partial(config.rows.load, number=Int32(i))) for i, warp in enumerate(numbers))
    return (weights, scheduler, *tokens) if config.problem.of_experts else (*tokens, weights, scheduler)


def roles(config: Any) -> tuple[WarpRole, ...]:
    """All warps of a CTA of SM90."""
    registers, first, last = config.registers, LOADER_WARPS, LOADER_WARPS + config.math_warps
    decoders = range(last, last + WARPS_PER_GROUP)
    decode = WarpRole("decode", decoders, lambda ctx, warp: config.weights.decode(ctx, warp - last), registers.get("decode", 0))
    gather = WarpRole("gather", decoders, lambda ctx, warp: config.rows.load(ctx, Int32(warp - last)), registers.get("gather", 0))
    return (
        warp_group("loaders", range(first), loader_roles(config), registers["loader"]),
        *((gather,) if config.rows.own_warps else (decode,) if config.weights.decode_warps else ()),
        WarpRole("math", None, lambda ctx, warp: math(ctx, warp - first, config.epilogue.finish), registers["math"], grows=True),
    )


def pair_loaders(config: Any) -> tuple[WarpRole, ...]:
    """The first four warps load rows, load weights, issue MMAs and schedule; where others gather rows, the first lists them or idles."""
    rows, weights = config.rows, config.weights
    if not rows.warps:
        return pair_warps.loader_roles(rows.load, weights.load, issue_mma, schedule_tiles)
    return (
        one_warp("weight loader", pair_warps.WEIGHTS_WARP, weights.load),
        one_warp("MMA", pair_warps.MMA_WARP, rows.multiply),
        one_warp("scheduler", pair_warps.SCHEDULER_WARP, lambda ctx: pair_warps.run_scheduler(ctx, schedule_tiles)),
        *((one_warp("index", None, rows.load),) if rows.gathers else ()),
    )


def pair_roles(config: Any) -> tuple[WarpRole, ...]:
    """All warps of a CTA of a pair."""
    rows, first, last = config.rows, pair_warps.LOADER_WARPS, config.first_epilogue_warp

    def finish(ctx: Any, warp: Any) -> None:
        epilogue(ctx, cute.arch.thread_idx()[0] - 32 * last, config.epilogue.finish)
        if config.epilogue.map_names:
            wait_group_read(0)  # scatter4 reads shared memory

    gather = WarpRole("gather", range(first, last), lambda ctx, warp: rows.gather(ctx, cute.arch.thread_idx()[0] - 32 * first))
    return (
        warp_group("loaders", range(first), pair_loaders(config)),
        *((gather,) if rows.warps else ()),
        WarpRole("epilogue", None, finish),
    )


@cute.jit
def run(ctx: GemmContext, warp: Any):
    if cutlass.const_expr(ctx.config.arch.has_tensor_memory):
        initialize_pair(ctx, warp)
        run_roles(pair_roles(ctx.config), ctx, warp)
        pair_warps.end_pair(ctx, warp)
    else:
        initialize(ctx, warp)
        run_roles(roles(ctx.config), ctx, warp)
        end_together(ctx)


def gemm_kernel(config: Any, args: GemmArguments, *maps: Any) -> None:
    """Rows of A as they lie, or of experts, gathered or sorted; B that is decoded comes as codes and records."""
    warp, places, smem = cute.arch.warp_idx(), addresses(config.map_names, maps), shared_memory(config.smem.region)
    run(GemmContext(config, args, places, smem, cute.arch.block_idx()[0], rank_in_cluster(config)), warp)

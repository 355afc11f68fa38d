"""The SM100 GEMM kernels: warps to roles, set-up and tear-down of a CTA.

| warps | role |
|---|---|
| 0-3  | load, multiply, schedule (blocks/sm100/pair_warps.py); where warps 4-7 gather rows, warp 0 lists them or idles |
| 4-7  | over the rows of experts: gather |
| last | epilogue |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import cutlass.cute as cute

from ....blocks.cta import WarpRole, begin, init_barriers, one_warp, run_roles, shared_memory, warp_group
from ....blocks.gemm.arguments import GemmArguments
from ....blocks.gemm.context import GemmContext, prefetch_maps
from ....blocks.gemm.sm100.config import LOADER_WARPS, Sm100GemmConfig
from ....blocks.gemm.sm100.epilogue import epilogue
from ....blocks.gemm.sm100.load import load_weights
from ....blocks.gemm.sm100.mma import issue_mma
from ....blocks.sm100.pair_warps import (
    MMA_WARP,
    SCHEDULER_WARP,
    TOKENS_WARP,
    WEIGHTS_WARP,
    allocate_columns,
    end_pair,
    loader_roles,
    run_scheduler,
)
from ....device.launch import addresses, kernel_with_maps
from ....device.warp import sync_cluster


@cute.jit
def initialize(ctx: GemmContext, warp: Any):
    """mbarriers, tables of rows and TMEM, visible to the pair; each CTA has its own tables."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(ctx, ctx.config.map_names)
    begin()
    # Only now: a launch that has not ended may hold tensor memory of this SM.
    if warp == SCHEDULER_WARP:
        allocate_columns(ctx)
        ctx.config.rows.fill_tables(ctx)
    sync_cluster()


@cute.jit
def finish(ctx: GemmContext):
    """Runs the epilogue warps, which come last."""
    epilogue(ctx, cute.arch.thread_idx()[0] - 32 * ctx.config.first_epilogue_warp, ctx.config.epilogue.finish)
    ctx.config.epilogue.end()


def loaders(config: Sm100GemmConfig) -> tuple[WarpRole, ...]:
    """The first four warps load rows, load weights, issue MMAs and schedule; where others gather rows, the first lists them or idles."""
    rows: Any = config.rows
    if not rows.warps:
        return loader_roles(rows.load, load_weights, issue_mma, rows.schedule)
    return (
        one_warp("weight loader", WEIGHTS_WARP, load_weights),
        one_warp("MMA", MMA_WARP, rows.multiply),
        one_warp("scheduler", SCHEDULER_WARP, lambda ctx: run_scheduler(ctx, rows.schedule)),
        *((one_warp("index", None, rows.load),) if rows.gathers else ()),
    )


def roles(config: Sm100GemmConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    rows, first, last = cast(Any, config.rows), LOADER_WARPS, config.first_epilogue_warp
    gather = WarpRole("gather", range(first, last), lambda ctx, warp: rows.gather(ctx, cute.arch.thread_idx()[0] - 32 * first))
    return (
        warp_group("loaders", range(first), loaders(config)),
        *((gather,) if rows.warps else ()),
        WarpRole("epilogue", None, lambda ctx, warp: finish(ctx)),
    )


@cute.jit
def run(ctx: GemmContext, warp: Any):
    """One CTA, from set-up to tear-down."""
    initialize(ctx, warp)
    run_roles(roles(ctx.config), ctx, warp)
    end_pair(ctx, warp)


def pair_gemm_kernel(config: Sm100GemmConfig, args: GemmArguments, *maps: Any) -> None:
    """Rows of A as they lie."""
    warp, places = cute.arch.warp_idx(), addresses(config.map_names, maps)
    smem = shared_memory(config.smem.region)
    run(GemmContext(config, args, places, smem, cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster()), warp)


def pair_gather_kernel(config: Sm100GemmConfig, args: GemmArguments, *maps: Any) -> None:
    """Rows of experts: tables in shared memory say which rows a tile has."""
    warp, places = cute.arch.warp_idx(), addresses(config.map_names, maps)
    place = (cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    run(GemmContext(config, args, places, shared_memory(config.smem.region), *place), warp)


def kernel_of(config: Sm100GemmConfig) -> Callable[..., Any]:
    """The kernel that takes the configuration's tensor maps."""
    return kernel_with_maps(pair_gather_kernel if config.problem.of_experts else pair_gemm_kernel, config.map_names)

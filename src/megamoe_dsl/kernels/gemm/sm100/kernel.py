"""The SM100 GEMM kernels: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices.

| warps | role |
|---|---|
| 0   | token loader; over the rows of experts index warp, where they are gathered |
| 1   | weight loader                                                             |
| 2   | MMA (even CTA); in odd CTAs announces scales that are copied              |
| 3   | scheduler: tiles (first CTA); TMEM                                        |
| 4-7 | over the rows of experts: gather                                          |
| last | epilogue                                                                 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant

from ....blocks.gemm.context import GemmContext
from ....blocks.gemm.gather.row_table import fill_tables
from ....blocks.gemm.gather.sm100.epilogue import finish_tile
from ....blocks.gemm.gather.sm100.gate_up_operand import gate_up_operand
from ....blocks.gemm.gather.sm100.gather import announce_scales, gather_tokens
from ....blocks.gemm.gather.sm100.list_rows import list_rows
from ....blocks.gemm.gather.sm100.tile_search import schedule_tiles as schedule_experts
from ....blocks.gemm.setup import addresses, prefetch_maps
from ....blocks.gemm.sm100.config import LOADER_WARPS, Sm100GemmConfig
from ....blocks.gemm.sm100.epilogue import epilogue
from ....blocks.gemm.sm100.load import load_tokens, load_weights, weight_operand
from ....blocks.gemm.sm100.mma import issue_mma
from ....blocks.gemm.tile_scheduler import schedule_tiles
from ....blocks.setup import begin, init_barriers, shared_memory
from ....blocks.sm100 import tensor_memory
from ....blocks.sm100.pair_warps import MMA_WARP, SCHEDULER_WARP, TOKENS_WARP, WEIGHTS_WARP, end_pair, loader_roles, run_scheduler
from ....blocks.warp_roles import WarpRole, one_warp, run_roles, warp_group
from ....device.cluster import sync_cluster
from ....device.tma import wait_group_read


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
        tensor_memory.allocate(ctx)
        if cutlass.const_expr(ctx.config.problem.of_experts):
            fill_tables(ctx)
    sync_cluster()


@cute.jit
def schedule_rows_of_experts(ctx: GemmContext):
    """Publishes work tiles in the first CTA of a cluster."""
    if ctx.cta_rank == 0:
        schedule_experts(ctx)


@cute.jit
def multiply_or_announce(ctx: GemmContext):
    """The MMA warp; the same warp of the odd CTA, where threads copy scales."""
    if ctx.place_in_pair == 0:
        issue_mma(ctx)
    elif cutlass.const_expr(ctx.config.problem.formats.scaled):
        announce_scales(ctx)


@cute.jit
def gather(ctx: GemmContext):
    """Runs the warps that gather rows of A; they come after the `LOADER_WARPS` loader warps."""
    gather_tokens(ctx, cute.arch.thread_idx()[0] - 32 * LOADER_WARPS)


@cute.jit
def finish(ctx: GemmContext):
    """Runs the epilogue warps; with rows of experts they also wait until their last bulk stores have read shared memory."""
    thread = cute.arch.thread_idx()[0] - 32 * ctx.config.first_epilogue_warp
    if cutlass.const_expr(ctx.config.problem.of_experts):
        epilogue(ctx, thread, finish_tile)
        wait_group_read(0)
    else:
        epilogue(ctx, thread)


def loaders(config: Sm100GemmConfig) -> tuple[WarpRole, ...]:
    """The first four warps load rows, load weights, issue MMAs and schedule; over the rows of experts the first lists rows or idles."""
    operand = gate_up_operand if config.problem.gate_up else weight_operand
    if not config.problem.of_experts:
        return loader_roles(load_tokens, lambda ctx: load_weights(ctx, operand), issue_mma, schedule_tiles)
    return (
        one_warp("weight loader", WEIGHTS_WARP, lambda ctx: load_weights(ctx, operand)),
        one_warp("MMA", MMA_WARP, multiply_or_announce),
        one_warp("scheduler", SCHEDULER_WARP, lambda ctx: run_scheduler(ctx, schedule_rows_of_experts)),
        *((one_warp("index", None, list_rows),) if config.problem.gathers else ()),
    )


def roles(config: Sm100GemmConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    gatherers = WarpRole("gather", range(LOADER_WARPS, config.first_epilogue_warp), lambda ctx, warp: gather(ctx))
    return (
        warp_group("loaders", range(LOADER_WARPS), loaders(config)),
        *((gatherers,) if config.rows.warps else ()),
        WarpRole("epilogue", None, lambda ctx, warp: finish(ctx)),
    )


@cute.jit
def run(ctx: GemmContext, warp: Any):
    """One CTA, from set-up to tear-down."""
    initialize(ctx, warp)
    run_roles(roles(ctx.config), ctx, warp)
    end_pair(ctx, warp)


@cute.kernel
def pair_gemm_kernel(
    config: cutlass.Constexpr[Sm100GemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    sfb: GridConstant[cuda.TensorMap],
    args: Any,
):
    """Rows of A as they lie."""
    warp, maps = cute.arch.warp_idx(), addresses(config.map_names, (tokens, sfa, weights, sfb))
    smem = shared_memory(config.smem.region)
    run(GemmContext(config, args, maps, smem, cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster()), warp)


@cute.kernel
def pair_gather_kernel(
    config: cutlass.Constexpr[Sm100GemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    sfb: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: Any,
):
    """Multiplies the rows of experts with their weights; tables in shared memory say which rows a tile has."""
    warp, maps = cute.arch.warp_idx(), addresses(config.map_names, (tokens, weights, sfb, d))
    place = (cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    run(GemmContext(config, args, maps, shared_memory(config.smem.region), *place), warp)


def kernel_of(config: Sm100GemmConfig) -> Callable[..., Any]:
    """The kernel that takes the configuration's tensor maps."""
    return pair_gather_kernel if config.problem.of_experts else pair_gemm_kernel

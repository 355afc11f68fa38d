"""The expert-parallel kernels: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps  | role | registers |
|---|---|---|
| 0      | token loader            | loader |
| 1      | weight loader           | loader |
| 2      | scheduler: tiles        | loader |
| 3      | nothing                 | loader |
| 4-11   | math, epilogues         | epilogue |
| 12-15  | communication: dispatch, or combine | dispatch |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int32

from ....blocks.gemm.config import LOADER_WARPS
from ....blocks.gemm.context import GemmContext
from ....blocks.gemm.epilogue_rows import finish_tile
from ....blocks.gemm.load import load_tokens, load_weights
from ....blocks.gemm.math import math
from ....blocks.gemm.setup import addresses, prefetch_maps, rank_in_cluster
from ....blocks.rank_barrier import Group
from ....blocks.setup import end_together, init_barriers, set_up_together, shared_memory
from ....device.memory import load_u32, store_shared_u32
from ....device.warp import set_max_registers
from . import combine, dispatch, scatter, serial
from .arguments import DispatchGemmArguments, GemmCombineArguments
from .config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from .context import ArrivingGemm, EpContext, EpGemm
from .gemm_arguments import combine_gemm_arguments, dispatch_gemm_arguments
from .layouts.symmetric import EpLaunch
from .scheduler import schedule_tiles
from .smem_plan import COMMUNICATION_WARPS

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP, _ = range(LOADER_WARPS)
THREADS = 32 * COMMUNICATION_WARPS
COMMUNICATION_BARRIER, MATH_BARRIER = 8, 9  # named barriers; the GEMM has those below


@cute.jit
def initialize(ctx: EpContext, gemm: GemmContext, warp: Any):
    """Initializes the mbarriers and makes them visible to TMA."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(gemm, ("tokens", "weights", "sfa", "d"))
    if (warp == SCHEDULER_WARP) & (cute.arch.lane_idx() == 0):
        # SM 0 counts this launch only when every CTA has said that it has read what it needs of other ranks.
        store_shared_u32(ctx.shared("epoch"), load_u32(ctx.at("launch_epoch")))
    set_up_together(ctx)


@cute.jit
def run_loader_warp(ctx: EpContext, gemm: GemmContext, warp: Any):
    """One of the four before the math warps."""
    set_max_registers(ctx.config.registers.loader, grow=False)
    if warp == TOKENS_WARP:
        load_tokens(gemm)
    elif warp == WEIGHTS_WARP:
        load_weights(gemm)
    elif warp == SCHEDULER_WARP:
        schedule_tiles(ctx, gemm)


def first_communication_warp(config: EpConfig) -> int:
    return LOADER_WARPS + config.math_warps


def communication_group(config: EpConfig) -> Group:
    """All communication warps of a CTA."""
    return Group(COMMUNICATION_BARRIER, THREADS, cute.arch.thread_idx()[0] - 32 * first_communication_warp(config))


@cute.kernel
def dispatch_gemm_kernel(
    config: cutlass.Constexpr[DispatchGemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    tokens_part: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    weights_part: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: DispatchGemmArguments,
):
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    maps = addresses(config.gemm.map_names, (tokens, tokens_part, weights, weights_part, sfa, d))
    ctx = EpContext(config, args, shared_memory(config.smem.region), EpLaunch.DISPATCH)
    place = (Int32(0), rank_in_cluster(config.gemm))
    gemm = ArrivingGemm(config.gemm, dispatch_gemm_arguments(config, args), maps, ctx.smem, *place, ctx)
    initialize(ctx, gemm, warp)
    if warp < LOADER_WARPS:
        run_loader_warp(ctx, gemm, warp)
    elif warp < first_communication_warp(config):
        set_max_registers(config.registers.epilogue, grow=True)
        math(gemm, warp - LOADER_WARPS)
    else:
        set_max_registers(config.registers.dispatch, grow=False)
        dispatch.dispatch(ctx, communication_group(config))
    end_together(gemm)


def finish_results(config: GemmCombineConfig) -> Callable[..., Any]:
    """What becomes of a tile's results."""
    if config.serial:
        return serial.finish_tile
    return scatter.finish_tile if config.scatter else finish_tile


@cute.kernel
def gemm_combine_kernel(
    config: cutlass.Constexpr[GemmCombineConfig],
    tokens: GridConstant[cuda.TensorMap],
    tokens_part: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    weights_part: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: GemmCombineArguments,
):
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    maps = addresses(config.gemm.map_names, (tokens, tokens_part, weights, weights_part, sfa, d))
    ctx = EpContext(config, args, shared_memory(config.smem.region), EpLaunch.COMBINE)
    gemm = EpGemm(config.gemm, combine_gemm_arguments(config, args), maps, ctx.smem, Int32(0), rank_in_cluster(config.gemm), ctx)
    initialize(ctx, gemm, warp)
    if warp < LOADER_WARPS:
        run_loader_warp(ctx, gemm, warp)
    elif warp < first_communication_warp(config):
        set_max_registers(config.registers.epilogue, grow=True)
        math(gemm, warp - LOADER_WARPS, finish_results(config))
        if cutlass.const_expr(not config.serial):
            combine.tiles_done(ctx, Group(MATH_BARRIER, 32 * config.math_warps, cute.arch.thread_idx()[0] - 32 * LOADER_WARPS))
    else:
        set_max_registers(config.registers.dispatch, grow=False)
        combine.combine(ctx, communication_group(config))
    end_together(gemm)

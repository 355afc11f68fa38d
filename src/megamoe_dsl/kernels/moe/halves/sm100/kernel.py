"""The expert-parallel kernels of SM100: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices.

| warps  | role |
|---|---|
| 0      | token loader        |
| 1      | weight loader       |
| 2      | MMA (even CTA)      |
| 3      | scheduler: tiles (even CTA); TMEM |
| 4-     | epilogue            |
| next 4 | communication: dispatch, or combine |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant

from .....blocks.gemm.context import GemmContext
from .....blocks.gemm.setup import addresses, prefetch_maps
from .....blocks.gemm.sm100.config import LOADER_WARPS
from .....blocks.gemm.sm100.epilogue import epilogue, store_tile_of
from .....blocks.gemm.sm100.loader_roles import SCHEDULER_WARP, TOKENS_WARP, WEIGHTS_WARP, end, loader_roles
from .....blocks.rank_barrier import Group, arrive
from .....blocks.setup import init_barriers, shared_memory
from .....blocks.sm100 import tensor_memory
from .....blocks.warp_roles import run_roles
from .....device.cluster import sync_cluster
from .....device.memory import load_u32, store_shared_u32
from ..arguments import DispatchGemmArguments, GemmCombineArguments
from ..combine import combine
from ..config import DispatchGemmConfig, GemmCombineConfig
from ..context import ArrivingGemm, EpContext, EpGemm
from ..dispatch import dispatch
from ..gemm_arguments import combine_gemm_arguments, dispatch_gemm_arguments
from ..kernel import MATH_BARRIER, communication_group, first_communication_warp
from ..layouts.symmetric import EpBarrier, EpLaunch
from ..scheduler import schedule_tiles
from .scatter import keep_tile, send_tile

MAPS = ("tokens", "sfa", "weights", "sfb")


@cute.jit
def initialize(ctx: EpContext, gemm: GemmContext, warp: Any):
    """mbarriers and TMEM, visible to the pair."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(gemm, MAPS)
    if warp == SCHEDULER_WARP:
        tensor_memory.allocate(gemm)
        if cute.arch.lane_idx() == 0:
            # SM 0 counts this launch only when every CTA has said that it has read what it needs of other ranks.
            store_shared_u32(ctx.shared("epoch"), load_u32(ctx.at("launch_epoch")))
    sync_cluster()


def publish_tiles(gemm: Any) -> None:
    """What the scheduler warp does."""
    schedule_tiles(gemm.ep, gemm)


@cute.kernel
def dispatch_pair_gemm_kernel(
    config: cutlass.Constexpr[DispatchGemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    sfb: GridConstant[cuda.TensorMap],
    args: DispatchGemmArguments,
):
    """One CTA, from set-up to tear-down."""
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    maps = addresses(MAPS, (tokens, sfa, weights, sfb))
    ctx = EpContext(config, args, shared_memory(config.smem.region), EpLaunch.DISPATCH)
    place = (cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    gemm = ArrivingGemm(config.gemm, dispatch_gemm_arguments(config, args), maps, ctx.smem, *place, ctx)
    initialize(ctx, gemm, warp)
    if warp < LOADER_WARPS:
        run_roles(loader_roles(config.gemm, publish_tiles), gemm, warp)
    elif warp < first_communication_warp(config):
        epilogue(gemm, thread - 32 * LOADER_WARPS)
    else:
        dispatch(ctx, communication_group(config))
    end(gemm, warp)


def finish_results(config: GemmCombineConfig) -> Callable[..., Any]:
    """What becomes of a tile's results."""
    if config.serial:
        return keep_tile
    return send_tile if config.scatter else store_tile_of


@cute.kernel
def pair_gemm_combine_kernel(
    config: cutlass.Constexpr[GemmCombineConfig],
    tokens: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    sfb: GridConstant[cuda.TensorMap],
    args: GemmCombineArguments,
):
    """One CTA, from set-up to tear-down."""
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    maps = addresses(MAPS, (tokens, sfa, weights, sfb))
    ctx = EpContext(config, args, shared_memory(config.smem.region), EpLaunch.COMBINE)
    place = (cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    gemm = EpGemm(config.gemm, combine_gemm_arguments(config, args), maps, ctx.smem, *place, ctx)
    initialize(ctx, gemm, warp)
    if warp < LOADER_WARPS:
        run_roles(loader_roles(config.gemm, publish_tiles), gemm, warp)
    elif warp < first_communication_warp(config):
        group = Group(MATH_BARRIER, 32 * config.math_warps, thread - 32 * LOADER_WARPS)
        epilogue(gemm, group.thread, finish_results(config))
        if cutlass.const_expr(not config.serial):
            arrive(ctx, group, EpBarrier.RESULTS)
    else:
        combine(ctx, communication_group(config))
    end(gemm, warp)

"""The GEMM kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0   | token loader     | loader |
| 1   | weight loader    | loader |
| 2   | scheduler: tiles | loader |
| 3   | nothing          | loader |
| 4.. | math, epilogues  | math   |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int32

from ...blocks.gemm.arguments import GemmArguments
from ...blocks.gemm.config import LOADER_WARPS, GemmConfig
from ...blocks.gemm.context import GemmContext, GemmMaps
from ...blocks.gemm.load import load_tokens, load_weights
from ...blocks.gemm.math import math
from ...blocks.gemm.setup import prefetch_maps
from ...blocks.gemm.tile_scheduler import schedule_tiles
from ...blocks.setup import begin, begin_after_others, init_barriers, shared_memory
from ...device.cluster import sync_cluster
from ...device.tensor_map import address
from ...device.warp import set_max_registers

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP, _ = range(LOADER_WARPS)


@cute.jit
def initialise(ctx: GemmContext, warp: Any):
    """mbarriers, visible to the cluster and to TMA."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(ctx, ("tokens", "weights", "sfa", "d"))
    set_up_together(ctx)
    if cutlass.const_expr(ctx.config.weights_first):
        begin_with_weights(warp)
    else:
        begin()


@cute.jit
def set_up_together(ctx: GemmContext):
    """All CTAs of a cluster: what is set up is visible to them."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()
    else:
        cute.arch.sync_threads()


@cute.jit
def begin_with_weights(warp: Any):
    """All warps but two wait for the launches before.  The scheduler reads where rows of groups lie, and deals tiles from a counter that
    the launch before has not; the weight loader reads B.  Neither reads what the launch before writes, nor writes what it reads."""
    if warp != SCHEDULER_WARP:
        if warp != WEIGHTS_WARP:
            begin_after_others()


@cute.jit
def end_together(ctx: GemmContext):
    """No CTA leaves while another may still reach its SMEM."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()


def rank_in_cluster(config: GemmConfig) -> Int32:
    return Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)


@cute.jit
def run_loader_warp(ctx: GemmContext, warp: Any, weights: cutlass.Constexpr[Callable[[GemmContext], None]] = load_weights):
    """One of the warps that do not multiply; `weights` is what the weight loader does."""
    if warp == TOKENS_WARP:
        load_tokens(ctx)
    elif warp == WEIGHTS_WARP:
        weights(ctx)
    elif warp == SCHEDULER_WARP:
        schedule_tiles(ctx)


@cute.kernel
def gemm_kernel(
    config: cutlass.Constexpr[GemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    tokens_part: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    weights_part: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: GemmArguments,
):
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    rank = rank_in_cluster(config)
    maps = GemmMaps(*(address(one) for one in (tokens, tokens_part, weights, weights_part, sfa, d)))
    ctx = GemmContext(config, args, maps, shared_memory(config.smem.region), cute.arch.block_idx()[0], rank)
    initialise(ctx, warp)
    if warp < LOADER_WARPS:
        set_max_registers(config.registers.loader, grow=False)
        run_loader_warp(ctx, warp)
    else:
        set_max_registers(config.registers.math, grow=True)
        math(ctx, warp - LOADER_WARPS)
    end_together(ctx)

"""The SM100 GEMM kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices.

| warps | role |
|---|---|
| 0   | token loader     |
| 1   | weight loader    |
| 2   | MMA (even CTA)   |
| 3   | scheduler: tiles (even CTA); TMEM |
| 4.. | epilogue         |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int64

from ....blocks.gemm.arguments import FactoredGemmArguments, GemmArguments
from ....blocks.gemm.context import GemmContext
from ....blocks.gemm.setup import prefetch_maps
from ....blocks.gemm.sm100.config import LOADER_WARPS, Sm100GemmConfig
from ....blocks.gemm.sm100.epilogue import epilogue
from ....blocks.gemm.sm100.load import load_tokens, load_weights
from ....blocks.gemm.sm100.mma import issue_mma
from ....blocks.gemm.tile_scheduler import schedule_tiles
from ....blocks.setup import begin, init_barriers, shared_memory
from ....blocks.sm100 import tensor_memory
from ....device.cluster import sync_cluster
from ....device.tensor_map import address

TOKENS_WARP, WEIGHTS_WARP, MMA_WARP, SCHEDULER_WARP = range(LOADER_WARPS)


@dataclass(frozen=True)
class PairGemmMaps:
    """Addresses of the tensor maps."""

    tokens: Int64
    sfa: Int64
    weights: Int64
    sfb: Int64


@cute.jit
def initialise(ctx: GemmContext, warp: Any):
    """mbarriers and TMEM, visible to the pair."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(ctx, ("tokens", "sfa", "weights", "sfb"))
    begin()
    # Only now: a launch that has not ended may hold tensor memory of this SM.
    if warp == SCHEDULER_WARP:
        tensor_memory.allocate(ctx)
    sync_cluster()


@cute.jit
def run_loader_warp(ctx: GemmContext, warp: Any, schedule: cutlass.Constexpr[Callable[[Any], None]] = schedule_tiles):
    """One of the four warps before the epilogue's; `schedule` is what the scheduler warp does."""
    if warp == TOKENS_WARP:
        load_tokens(ctx)
    elif warp == WEIGHTS_WARP:
        load_weights(ctx)
    elif warp == MMA_WARP:
        if ctx.cta_rank == 0:
            issue_mma(ctx)
    else:
        tensor_memory.check_first_column(ctx)
        schedule(ctx)


@cute.kernel
def pair_gemm_kernel(
    config: cutlass.Constexpr[Sm100GemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    sfb: GridConstant[cuda.TensorMap],
    args: GemmArguments | FactoredGemmArguments,
):
    """One CTA, from set-up to tear-down."""
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    maps = PairGemmMaps(*(address(one) for one in (tokens, sfa, weights, sfb)))
    ctx = GemmContext(config, args, maps, shared_memory(config.smem.region), cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    initialise(ctx, warp)
    if warp < LOADER_WARPS:
        run_loader_warp(ctx, warp)
    else:
        epilogue(ctx, thread - 32 * LOADER_WARPS)
    # Neither CTA leaves while the other may still reach its SMEM or TMEM.
    sync_cluster()
    if warp == SCHEDULER_WARP:
        tensor_memory.free(ctx)

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

from .....blocks.cta import WarpRole, init_barriers, run_roles, warp_group
from .....blocks.gemm.context import prefetch_maps
from .....blocks.gemm.sm100.epilogue import epilogue, store_tile_of
from .....blocks.gemm.sm100.load import load_tokens, load_weights
from .....blocks.gemm.sm100.mma import issue_mma
from .....blocks.rank_barrier import arrive
from .....blocks.sm100.pair_warps import LOADER_WARPS, SCHEDULER_WARP, TOKENS_WARP, WEIGHTS_WARP, allocate_columns, end_pair, loader_roles
from .....device.warp import sync_cluster
from ..config import EpConfig, GemmCombineConfig
from ..context import EpGemm
from ..kernel import communicates, context, keep_epoch, math_group
from ..layouts.symmetric import EpBarrier, EpLaunch
from ..scheduler import schedule_tiles
from .scatter import keep_tile, send_tile


@cute.jit
def initialize(gemm: EpGemm, warp: Any):
    """mbarriers and TMEM, visible to the pair."""
    if warp == WEIGHTS_WARP:
        init_barriers(gemm.ep)
    if warp == TOKENS_WARP:
        prefetch_maps(gemm, gemm.config.map_names)
    if warp == SCHEDULER_WARP:
        allocate_columns(gemm)
        if cute.arch.lane_idx() == 0:
            keep_epoch(gemm.ep)
    sync_cluster()


def finish_results(config: GemmCombineConfig) -> Callable[..., Any]:
    """What becomes of a tile's results."""
    if config.serial:
        return keep_tile
    return send_tile if config.scatter else store_tile_of


@cute.jit
def finish_tiles(gemm: EpGemm):
    """Runs the epilogue warps, which for combine say when all tiles of this CTA are in memory."""
    config, group = gemm.ep.config, math_group(gemm.ep.config)
    if cutlass.const_expr(config.launch == EpLaunch.DISPATCH):
        epilogue(gemm, group.thread)
    else:
        epilogue(gemm, group.thread, finish_results(config))
        if cutlass.const_expr(not config.serial):
            arrive(gemm.ep, group, EpBarrier.RESULTS)


def roles(config: EpConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    return (
        warp_group("loaders", range(LOADER_WARPS), loader_roles(load_tokens, load_weights, issue_mma, schedule_tiles)),
        WarpRole("epilogue", range(LOADER_WARPS, LOADER_WARPS + config.math_warps), lambda gemm, warp: finish_tiles(gemm)),
        communicates(config),
    )


def pair_half_kernel(config: EpConfig, args: Any, *maps: Any) -> None:
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    gemm = context(config, args, *maps)
    initialize(gemm, warp)
    run_roles(roles(config), gemm, warp)
    end_pair(gemm, warp)

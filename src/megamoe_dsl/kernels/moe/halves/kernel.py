"""The expert-parallel kernels: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.cta import WarpRole, end_together, init_barriers, one_warp, run_roles, set_up_together, shared_memory, warp_group
from ....blocks.gemm.config import LOADER_WARPS
from ....blocks.gemm.context import prefetch_maps, rank_in_cluster
from ....blocks.gemm.load import load_tokens
from ....blocks.gemm.math import math
from ....blocks.gemm.sm100.epilogue import epilogue, store_tile_of
from ....blocks.gemm.sm100.load import issue_mma
from ....blocks.gemm.store import finish_rows
from ....blocks.rank_barrier import Group
from ....blocks.sm100 import pair_warps
from ....device.launch import addresses
from ....device.memory import load_u32, store_shared_u32
from .combine import combine, tiles_done
from .config import COMMUNICATION_WARPS, EpConfig, GemmCombineConfig
from .context import EpContext, EpGemm
from .dispatch import dispatch
from .layouts.symmetric import EpLaunch
from .scatter import keep_rows, keep_tile, send_rows, send_tile
from .scheduler import schedule_tiles

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP, _ = range(LOADER_WARPS)
COMMUNICATION_BARRIER, MATH_BARRIER = 8, 9  # named barriers; the GEMM has those below
COMMUNICATE: dict[EpLaunch, Callable[..., Any]] = {EpLaunch.DISPATCH: dispatch, EpLaunch.COMBINE: combine}


@cute.jit
def initialize(gemm: EpGemm, warp: Any):
    """mbarriers, visible to the cluster and to TMA; TMEM where there is any; the number of this launch."""
    if warp == WEIGHTS_WARP:
        init_barriers(gemm.ep)
    if warp == TOKENS_WARP:
        prefetch_maps(gemm)
    if cutlass.const_expr(gemm.ep.config.arch.has_tensor_memory):
        if warp == pair_warps.SCHEDULER_WARP:
            pair_warps.allocate_columns(gemm)
            if cute.arch.lane_idx() == 0:
                keep_epoch(gemm.ep)
    elif (warp == SCHEDULER_WARP) & (cute.arch.lane_idx() == 0):
        keep_epoch(gemm.ep)
    set_up_together(gemm.ep)


def keep_epoch(ctx: EpContext) -> None:
    """SM 0 counts this launch only when every CTA has said that it has read what it needs of other ranks."""
    store_shared_u32(ctx.shared("epoch"), load_u32(ctx.at("launch_epoch")))


def finish_results(config: GemmCombineConfig) -> Callable[..., Any]:
    """What becomes of a tile's results."""
    if config.arch.has_tensor_memory:
        return keep_tile if config.serial else (send_tile if config.scatter else store_tile_of)
    return keep_rows if config.serial else (send_rows if config.scatter else finish_rows)


def math_group(config: EpConfig) -> Group:
    """All warps of a CTA that have sums of tiles."""
    return Group(MATH_BARRIER, 32 * config.math_warps, cute.arch.thread_idx()[0] - 32 * LOADER_WARPS)


@cute.jit
def finish_tiles(gemm: EpGemm, warp: Any):
    """Runs the warps that have sums of tiles, which for combine also say when all tiles of this CTA are in memory."""
    config = gemm.ep.config
    combines = config.launch == EpLaunch.COMBINE
    finish = finish_results(config) if combines else config.gemm.epilogue.finish
    if cutlass.const_expr(config.arch.has_tensor_memory):
        group = math_group(config)
        epilogue(gemm, group.thread, finish)
    else:
        math(gemm, warp - LOADER_WARPS, finish)
        group = math_group(config)
    if cutlass.const_expr(combines and not config.serial):
        tiles_done(gemm.ep, group)


def loaders(config: EpConfig) -> tuple[WarpRole, ...]:
    """The first four warps of a CTA."""
    gemm: Any = config.gemm
    if config.arch.has_tensor_memory:
        return pair_warps.loader_roles(gemm.rows.load, gemm.weights.load, issue_mma, schedule_tiles)
    return (
        one_warp("token loader", TOKENS_WARP, load_tokens),
        one_warp("weight loader", WEIGHTS_WARP, gemm.weights.load),
        one_warp("scheduler", SCHEDULER_WARP, schedule_tiles),
    )


def roles(config: EpConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    registers, first, last = config.registers, LOADER_WARPS, LOADER_WARPS + config.math_warps

    def communicate(gemm: Any, warp: Any) -> None:
        COMMUNICATE[config.launch](gemm.ep, Group(COMMUNICATION_BARRIER, 32 * COMMUNICATION_WARPS, cute.arch.thread_idx()[0] - 32 * last))

    return (
        warp_group("loaders", range(first), loaders(config), registers.get("loader", 0)),
        WarpRole("math", range(first, last), finish_tiles, registers.get("math", 0), grows=True),
        WarpRole("communication", None, communicate, registers.get("communication", 0)),
    )


def half_kernel(config: EpConfig, args: Any, *maps: Any) -> None:
    """One CTA, from set-up to tear-down."""
    warp, places = cute.arch.warp_idx(), addresses(config.gemm.map_names, maps)
    ep, place = EpContext(config, args, shared_memory(config.smem.region)), (Int32(0), rank_in_cluster(config.gemm))
    gemm = EpGemm(config.gemm, config.gemm_arguments(args), places, ep.smem, *place, ep)
    initialize(gemm, warp)
    run_roles(roles(config), gemm, warp)
    if config.arch.has_tensor_memory:
        pair_warps.end_pair(gemm, warp)
    else:
        end_together(gemm)

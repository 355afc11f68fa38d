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
from cutlass import Int32

from ....blocks.cta import WarpRole, end_together, init_barriers, one_warp, run_roles, set_up_together, shared_memory, warp_group
from ....blocks.gemm.config import LOADER_WARPS
from ....blocks.gemm.context import prefetch_maps, rank_in_cluster
from ....blocks.gemm.load import load_tokens, load_weights
from ....blocks.gemm.math import math
from ....blocks.gemm.store import finish_rows
from ....blocks.rank_barrier import Group
from ....device.launch import addresses
from ....device.memory import load_u32, store_shared_u32
from . import scatter, serial
from .combine import combine, tiles_done
from .config import EpConfig, GemmCombineConfig
from .context import EpContext, EpGemm
from .dispatch import dispatch
from .layouts.symmetric import EpLaunch
from .scheduler import schedule_tiles
from .smem_plan import COMMUNICATION_WARPS

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP, _ = range(LOADER_WARPS)
COMMUNICATION_BARRIER, MATH_BARRIER = 8, 9  # named barriers; the GEMM has those below
COMMUNICATE: dict[EpLaunch, Callable[..., Any]] = {EpLaunch.DISPATCH: dispatch, EpLaunch.COMBINE: combine}


def context(config: EpConfig, args: Any, *maps: Any) -> EpGemm:
    """What the roles of a CTA need: the GEMM, and the kernel around it."""
    places = addresses(config.gemm.map_names, maps)
    ctx = EpContext(config, args, shared_memory(config.smem.region))
    place = (Int32(0), rank_in_cluster(config.gemm))
    return EpGemm(config.gemm, config.gemm_arguments(args), places, ctx.smem, *place, ctx)


def keep_epoch(ctx: EpContext) -> None:
    """SM 0 counts this launch only when every CTA has said that it has read what it needs of other ranks."""
    store_shared_u32(ctx.shared("epoch"), load_u32(ctx.at("launch_epoch")))


def communicates(config: EpConfig) -> WarpRole:
    """The last warps of a CTA."""
    first, run = LOADER_WARPS + config.math_warps, COMMUNICATE[config.launch]

    def communicate(gemm: Any, warp: Any) -> None:
        run(gemm.ep, Group(COMMUNICATION_BARRIER, 32 * COMMUNICATION_WARPS, cute.arch.thread_idx()[0] - 32 * first))

    return WarpRole("communication", None, communicate, config.registers.dispatch)


def math_group(config: EpConfig) -> Group:
    """All warps of a CTA that have sums of tiles."""
    return Group(MATH_BARRIER, 32 * config.math_warps, cute.arch.thread_idx()[0] - 32 * LOADER_WARPS)


@cute.jit
def initialize(gemm: EpGemm, warp: Any):
    """Initializes the mbarriers and makes them visible to TMA."""
    if warp == WEIGHTS_WARP:
        init_barriers(gemm.ep)
    if warp == TOKENS_WARP:
        prefetch_maps(gemm, ("tokens", "weights", "sfa", "d"))
    if (warp == SCHEDULER_WARP) & (cute.arch.lane_idx() == 0):
        keep_epoch(gemm.ep)
    set_up_together(gemm.ep)


def finish_results(config: GemmCombineConfig) -> Callable[..., Any]:
    """What becomes of a tile's results."""
    if config.serial:
        return serial.finish_tile
    return scatter.finish_tile if config.scatter else finish_rows


@cute.jit
def multiply_for_combine(gemm: EpGemm, warp: Any):
    """Runs the math warps of Linear2, which also say when all tiles of this CTA are in memory."""
    config = gemm.ep.config
    math(gemm, warp, finish_results(config))
    if cutlass.const_expr(not config.serial):
        tiles_done(gemm.ep, math_group(config))


def roles(config: EpConfig) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    registers, first, last = config.registers, LOADER_WARPS, LOADER_WARPS + config.math_warps
    multiply = math if config.launch == EpLaunch.DISPATCH else multiply_for_combine
    loaders = (
        one_warp("token loader", TOKENS_WARP, load_tokens),
        one_warp("weight loader", WEIGHTS_WARP, load_weights),
        one_warp("scheduler", SCHEDULER_WARP, schedule_tiles),
    )
    return (
        warp_group("loaders", range(first), loaders, registers.loader),
        WarpRole("math", range(first, last), lambda gemm, warp: multiply(gemm, warp - first), registers.epilogue, grows=True),
        communicates(config),
    )


def half_kernel(config: EpConfig, args: Any, *maps: Any) -> None:
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    gemm = context(config, args, *maps)
    initialize(gemm, warp)
    run_roles(roles(config), gemm, warp)
    end_together(gemm)

"""The expert-parallel kernels: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps  | role | registers |
|---|---|---|
| 0      | token loader            | loader |
| 1      | weight loader           | loader |
| 2      | scheduler: tasks, tiles | loader |
| 3      | nothing                 | loader |
| 4-11   | math, epilogues         | epilogue |
| 12-15  | communication: dispatch | dispatch |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int32

from ...blocks.rank_barrier import Group
from ...blocks.setup import init_barriers, shared_memory
from ...device.launch import launch
from ...device.memory import load_u32, store_shared_u32
from ...device.warp import set_max_registers
from ..gemm.config import LOADER_WARPS
from ..gemm.context import GemmContext, GemmMaps
from ..gemm.launch_maps import address, make_map
from ..gemm.load import load_tokens, load_weights
from ..gemm.maps import map_fields
from ..gemm.math import math
from ..gemm.setup import prefetch_maps
from .arguments import DispatchGemmArguments
from .config import DispatchGemmConfig
from .context import ArrivingGemm, EpContext
from .dispatch import THREADS, count_tasks, dispatch
from .gemm_arguments import dispatch_gemm_arguments
from .layouts.symmetric import EpLaunch
from .scheduler import TasksBefore, expert_table, fill_table, schedule_tasks

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP, _ = range(LOADER_WARPS)
COMMUNICATION_BARRIER = 8  # named barrier; the GEMM has those below


@cute.jit
def initialise(ctx: EpContext, gemm: GemmContext, warp: Any):
    """mbarriers, visible to TMA."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(gemm, ("tokens", "weights", "sfa", "d"))
    if (warp == SCHEDULER_WARP) & (cute.arch.lane_idx() == 0):
        # SM 0 counts this launch only when every CTA has said that it has read what it needs of other ranks.
        store_shared_u32(ctx.shared("epoch"), load_u32(ctx.at("launch_epoch")))
    cute.arch.sync_threads()


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
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    maps = GemmMaps(*(address(one) for one in (tokens, tokens_part, weights, weights_part, sfa, d)))
    ctx = EpContext(config, args, shared_memory(config.smem.region), EpLaunch.DISPATCH)
    # The GEMM's place in the grid and in a cluster is for its own scheduler, which is not here.
    gemm = ArrivingGemm(config.gemm, dispatch_gemm_arguments(config, args), maps, ctx.smem, Int32(0), Int32(0), ctx)
    initialise(ctx, gemm, warp)
    first_communication = LOADER_WARPS + config.math_warps
    if warp < LOADER_WARPS:
        set_max_registers(config.registers.loader, grow=False)
        if warp == TOKENS_WARP:
            load_tokens(gemm)
        elif warp == WEIGHTS_WARP:
            load_weights(gemm)
        elif warp == SCHEDULER_WARP:
            fill_table(ctx, gemm)
            schedule_tasks(ctx, gemm, TasksBefore(config.gemm, expert_table(gemm), count_tasks(ctx), 0))
    elif warp < first_communication:
        set_max_registers(config.registers.epilogue, grow=True)
        math(gemm, warp - LOADER_WARPS)
    else:
        set_max_registers(config.registers.dispatch, grow=False)
        dispatch(ctx, Group(COMMUNICATION_BARRIER, THREADS, thread - 32 * first_communication))


@cute.jit
def dispatch_grouped_gemm(config: cutlass.Constexpr[DispatchGemmConfig], args: DispatchGemmArguments, stream: Any):
    """Makes the tensor maps and launches the kernel on one rank."""
    maps = [make_map(fields) for fields in map_fields(config.gemm, dispatch_gemm_arguments(config, args))]
    launch(dispatch_gemm_kernel(config, *maps, args), config, stream)

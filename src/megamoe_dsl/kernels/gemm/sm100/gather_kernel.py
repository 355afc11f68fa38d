"""The SM100 kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices.

| warps | role |
|---|---|
| 0     | index warp, where rows are gathered |
| 1     | weight loader    |
| 2     | MMA; in odd CTAs announces scales, if there are any |
| 3     | scheduler: tiles (first CTA); TMEM |
| 4-7   | gather           |
| 8..   | epilogue         |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant

from ....blocks.gemm.gather.arguments import GatherGemmArguments
from ....blocks.gemm.gather.row_table import fill_tables
from ....blocks.gemm.gather.sm100.config import Sm100GatherConfig
from ....blocks.gemm.gather.sm100.context import PairGatherContext, PairGatherMaps
from ....blocks.gemm.gather.sm100.epilogue import finish_tile
from ....blocks.gemm.gather.sm100.gate_up_operand import gate_up_operand
from ....blocks.gemm.gather.sm100.gather import announce_scales, gather_tokens
from ....blocks.gemm.gather.sm100.list_rows import list_rows
from ....blocks.gemm.gather.sm100.maps import MAPS
from ....blocks.gemm.gather.sm100.tile_search import schedule_tiles
from ....blocks.gemm.setup import prefetch_maps
from ....blocks.gemm.sm100.config import LOADER_WARPS
from ....blocks.gemm.sm100.epilogue import epilogue
from ....blocks.gemm.sm100.load import load_weights
from ....blocks.gemm.sm100.mma import issue_mma
from ....blocks.setup import begin, init_barriers, shared_memory
from ....blocks.sm100 import tensor_memory
from ....device.cluster import sync_cluster
from ....device.tensor_map import address
from ....device.tma import wait_group_read

INDEX_WARP, WEIGHTS_WARP, MMA_WARP, SCHEDULER_WARP = range(LOADER_WARPS)


@cute.jit
def initialise(ctx: PairGatherContext, warp: Any):
    """mbarriers, tables of rows and TMEM, visible to the pair; each CTA has its own tables."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == INDEX_WARP:
        prefetch_maps(ctx, MAPS)
    begin()
    if warp == SCHEDULER_WARP:
        tensor_memory.allocate(ctx)
        fill_tables(ctx)
    sync_cluster()


@cute.jit
def run_loader_warp(ctx: PairGatherContext, warp: Any, schedule: cutlass.Constexpr[Callable[[Any], None]] = schedule_tiles):
    """One of the first four warps; `schedule` is what the even CTA's scheduler warp does."""
    if warp == WEIGHTS_WARP:
        if cutlass.const_expr(ctx.config.problem.gate_up):
            load_weights(ctx, gate_up_operand)
        else:
            load_weights(ctx)
    elif warp == MMA_WARP:
        if ctx.place_in_pair == 0:
            issue_mma(ctx)
        elif cutlass.const_expr(ctx.config.problem.formats.scaled):
            announce_scales(ctx)
    elif warp == SCHEDULER_WARP:
        tensor_memory.check_first_column(ctx)
        if ctx.cta_rank == 0:
            schedule(ctx)
    elif cutlass.const_expr(ctx.config.problem.gathers):
        list_rows(ctx)


@cute.kernel
def pair_gather_kernel(
    config: cutlass.Constexpr[Sm100GatherConfig],
    tokens: GridConstant[cuda.TensorMap],
    weights: GridConstant[cuda.TensorMap],
    sfb: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: GatherGemmArguments,
):
    """One CTA, from set-up to tear-down."""
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    maps = PairGatherMaps(*(address(one) for one in (tokens, weights, sfb, d)))
    place = (cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    ctx = PairGatherContext(config, args, maps, shared_memory(config.smem.region), *place)
    initialise(ctx, warp)
    if warp < LOADER_WARPS:
        run_loader_warp(ctx, warp)
    elif warp < config.first_epilogue_warp:
        gather_tokens(ctx, thread - 32 * LOADER_WARPS)
    else:
        epilogue(ctx, thread - 32 * config.first_epilogue_warp, finish_tile)
        wait_group_read(0)
    # Neither CTA leaves while the other may still reach its SMEM or TMEM.
    sync_cluster()
    if warp == SCHEDULER_WARP:
        tensor_memory.free(ctx)

"""The kernels: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0   | token loader, or gathers rows | loader |
| 1   | weight loader                 | loader |
| 2   | scheduler: tiles              | loader |
| 3   | nothing, or gathers rows      | loader |
| 4.. | math, epilogues               | math   |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int32

from ...blocks.gemm.config import LOADER_WARPS
from ...blocks.gemm.gather.arguments import GatherGemmArguments
from ...blocks.gemm.gather.config import GatherGemmConfig
from ...blocks.gemm.gather.context import GatherContext, GatherMaps, SortedMaps
from ...blocks.gemm.gather.epilogue_gate_up import finish_gate_up
from ...blocks.gemm.gather.epilogue_gate_up_bf16 import finish_gate_up_bf16
from ...blocks.gemm.gather.gate_up import gate_and_up
from ...blocks.gemm.gather.gather import gather_tokens
from ...blocks.gemm.gather.row_table import fill_tables
from ...blocks.gemm.load import load_tokens, load_weights
from ...blocks.gemm.math import math
from ...blocks.gemm.setup import prefetch_maps
from ...blocks.gemm.tile_scheduler import walk_tiles
from ...blocks.setup import begin_after_others, init_barriers, shared_memory
from ...device.tensor_map import address
from ...device.warp import set_max_registers

TOKENS_WARP, WEIGHTS_WARP, SCHEDULER_WARP, SECOND_TOKENS_WARP = range(LOADER_WARPS)


@cute.jit
def run_loader_warp(ctx: GatherContext, warp: Any):
    """One of the warps that do not multiply."""
    gathers = ctx.config.problem.gathers
    if warp == WEIGHTS_WARP:
        if cutlass.const_expr(ctx.config.weight_rows < ctx.config.block_n):
            load_weights(ctx, gate_and_up)
        else:
            load_weights(ctx)
    elif warp == SCHEDULER_WARP:
        fill_tables(ctx)
        walk_tiles(ctx)
    elif warp == TOKENS_WARP:
        if cutlass.const_expr(gathers):
            gather_tokens(ctx, Int32(0))
        else:
            load_tokens(ctx)
    elif cutlass.const_expr(gathers):
        gather_tokens(ctx, Int32(1))


@cute.jit
def run(ctx: GatherContext, warp: Any):
    """One CTA, from set-up on."""
    config = ctx.config
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(ctx, ("weights", "d") if config.problem.gathers else ("weights", "d", "tokens", "sfa"))
    cute.arch.sync_threads()
    begin_after_others()  # Linear2, which may follow, has its weights on their way before it waits
    if warp < LOADER_WARPS:
        set_max_registers(config.registers.loader, grow=False)
        run_loader_warp(ctx, warp)
    else:
        set_max_registers(config.registers.math, grow=True)
        if cutlass.const_expr(config.problem.gate_up):
            math(ctx, warp - LOADER_WARPS, finish_gate_up if config.tile.scaled else finish_gate_up_bf16)
        else:
            math(ctx, warp - LOADER_WARPS)


def context(config: GatherGemmConfig, args: GatherGemmArguments, maps: Any) -> GatherContext:
    return GatherContext(config, args, maps, shared_memory(config.smem.region), cute.arch.block_idx()[0], Int32(0))


@cute.kernel
def gather_gemm_kernel(
    config: cutlass.Constexpr[GatherGemmConfig],
    weights: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: GatherGemmArguments,
):
    run(context(config, args, GatherMaps(address(weights), address(d))), cute.arch.warp_idx())


@cute.kernel
def sorted_gemm_kernel(
    config: cutlass.Constexpr[GatherGemmConfig],
    weights: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    tokens: GridConstant[cuda.TensorMap],
    tokens_part: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    args: GatherGemmArguments,
):
    """Rows that are sorted already."""
    maps = SortedMaps(*(address(one) for one in (weights, d, tokens, tokens_part, sfa)))
    run(context(config, args, maps), cute.arch.warp_idx())

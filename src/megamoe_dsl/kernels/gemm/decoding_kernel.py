"""The GEMM kernel that decodes its weights: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register
counts; they are those of FP8 (kernels/gemm/kernel.py), and so are the loader of A, the scheduler and the epilogues.  Where rows of A are
the wgmma's rows, four warps after the math warps decode B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int64

from ...blocks.gemm.arguments import GemmArguments
from ...blocks.gemm.config import LOADER_WARPS, GemmConfig
from ...blocks.gemm.context import GemmContext
from ...blocks.gemm.decoding import math, math_rows
from ...blocks.gemm.decoding.decode import decode_weights
from ...blocks.gemm.decoding.load import load_weights
from ...blocks.gemm.setup import prefetch_maps
from ...blocks.setup import begin, init_barriers, shared_memory
from ...device.e2m1 import store_table
from ...device.tensor_map import address
from ...device.warp import set_max_registers
from .kernel import SCHEDULER_WARP, TOKENS_WARP, WEIGHTS_WARP, end_together, rank_in_cluster, run_loader_warp, set_up_together


@dataclass(frozen=True)
class DecodingMaps:
    """Addresses of the tensor maps."""

    tokens: Int64
    tokens_part: Int64
    codes: Int64
    records: Int64
    sfa: Int64
    d: Int64


@cute.jit
def initialise(ctx: GemmContext, warp: Any):
    """mbarriers and the table of decoded values, visible to the cluster and to TMA."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        prefetch_maps(ctx, ("tokens", "codes", "records", "sfa", "d"))
    if warp == SCHEDULER_WARP:
        store_table(ctx.shared("decoded"))
    set_up_together(ctx)
    begin()


@cute.kernel
def decoding_gemm_kernel(
    config: cutlass.Constexpr[GemmConfig],
    tokens: GridConstant[cuda.TensorMap],
    tokens_part: GridConstant[cuda.TensorMap],
    codes: GridConstant[cuda.TensorMap],
    records: GridConstant[cuda.TensorMap],
    sfa: GridConstant[cuda.TensorMap],
    d: GridConstant[cuda.TensorMap],
    args: GemmArguments,
):
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    rank = rank_in_cluster(config)
    maps = DecodingMaps(*(address(one) for one in (tokens, tokens_part, codes, records, sfa, d)))
    ctx = GemmContext(config, args, maps, shared_memory(config.smem.region), cute.arch.block_idx()[0], rank)
    initialise(ctx, warp)
    if warp < LOADER_WARPS:
        set_max_registers(config.registers.loader, grow=False)
        run_loader_warp(ctx, warp, load_weights)
    else:
        if cutlass.const_expr(config.decode_warps):
            if warp >= LOADER_WARPS + config.math_warps:
                set_max_registers(config.registers.decode, grow=False)
                decode_weights(ctx, warp - (LOADER_WARPS + config.math_warps))
            else:
                set_max_registers(config.registers.math, grow=True)
                math_rows.math(ctx, warp - LOADER_WARPS)
        else:
            set_max_registers(config.registers.math, grow=True)
            math.math(ctx, warp - LOADER_WARPS)
    end_together(ctx)

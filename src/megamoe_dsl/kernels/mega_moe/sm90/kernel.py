"""The SM90 kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0-3   | dispatch, pull, clean | dispatch |
| 4     | token loader          | loader |
| 5     | weight loader         | loader |
| 6     | store of Linear1 tiles | loader |
| 7     | tile scheduler        | loader |
| 8-15  | math, epilogues, combine | epilogue |
| 16-19 | decode of packed weights, for tiles of many tokens | decode |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from ....blocks.setup import init_barriers
from ....device.cluster import sync_cluster
from ....device.e2m1 import store_table
from ....device.launch import launch
from ....device.warp import set_max_registers, smem_base
from ..arguments import Arguments, BiasedArguments, Sm90Arguments
from ..dispatch import dispatch
from ..layouts.tile import DISPATCH_WARPS, LOADER_WARPS, WARPS_PER_GROUP
from ..setup import acquire_maps
from ..tile_scheduler import schedule_tiles
from .config import Sm90Config
from .context import Sm90Context
from .decode import decode_weights
from .load import load_tokens, load_weights
from .maps import NUM_MAPS
from .math import math
from .smem_plan import MATH_WARPGROUPS
from .store import store_tiles

TOKENS_WARP, WEIGHTS_WARP, STORE_WARP, SCHEDULER_WARP = range(DISPATCH_WARPS, DISPATCH_WARPS + LOADER_WARPS)
FIRST_MATH_WARP = DISPATCH_WARPS + LOADER_WARPS
FIRST_DECODE_WARP = FIRST_MATH_WARP + WARPS_PER_GROUP * MATH_WARPGROUPS


@cute.jit
def initialise(ctx: Sm90Context, warp: Any):
    """mbarriers, visible to the cluster and to TMA."""
    if warp == WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == TOKENS_WARP:
        acquire_maps(ctx, NUM_MAPS)
    if cutlass.const_expr(ctx.config.packed):
        if warp == STORE_WARP:
            store_table(ctx.shared("decoded"))
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()
    else:
        cute.arch.sync_threads()


@cute.jit
def finalise(ctx: Sm90Context):
    """No CTA leaves while another may still reach its SMEM."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()


@cute.jit
def run_loader_warp(ctx: Sm90Context, warp: Any):
    """One of the four warps between dispatch and math: token loader, weight loader, store or scheduler."""
    if warp == TOKENS_WARP:
        load_tokens(ctx)
    elif warp == WEIGHTS_WARP:
        load_weights(ctx)
    elif warp == STORE_WARP:
        store_tiles(ctx)
    else:
        schedule_tiles(ctx)


@cute.jit
def run_math_warp(ctx: Sm90Context, warp: Any):
    """One of the eight."""
    set_max_registers(ctx.config.registers.epilogue, grow=True)
    math(ctx, warp - FIRST_MATH_WARP)


@cute.jit
def run_decode_warp(ctx: Sm90Context, warp: Any):
    """One of the four that a kernel with packed weights and large tiles adds."""
    set_max_registers(ctx.config.registers.decode, grow=False)
    decode_weights(ctx, warp - FIRST_DECODE_WARP)


@cute.kernel
def mega_moe_kernel(config: cutlass.Constexpr[Sm90Config], args: Arguments):
    """One CTA, from set-up to tear-down."""
    alignment = config.smem.region.alignment
    buffer: Any = cutlass.Array(cutlass.Int8, config.smem.num_bytes, space=cutlass.AddressSpace.smem, alignment=alignment)
    warp = cute.arch.warp_idx()
    thread = cute.arch.thread_idx()[0]
    rank = cutlass.Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)
    ctx = Sm90Context(config, args, smem_base(buffer), cute.arch.block_idx()[0], rank)
    initialise(ctx, warp)
    if warp < DISPATCH_WARPS:
        set_max_registers(config.registers.dispatch, grow=False)
        dispatch(ctx, thread)
    elif warp < FIRST_MATH_WARP:
        set_max_registers(config.registers.loader, grow=False)
        run_loader_warp(ctx, warp)
    else:
        if cutlass.const_expr(config.decoded):
            if warp >= FIRST_DECODE_WARP:
                run_decode_warp(ctx, warp)
            else:
                run_math_warp(ctx, warp)
        else:
            run_math_warp(ctx, warp)
    finalise(ctx)


@cute.jit
def mega_moe(config: cutlass.Constexpr[Sm90Config], args: Sm90Arguments, stream: Any):
    """Launches the kernel on one rank."""
    launch(mega_moe_kernel(config, args), config, stream)


@cute.jit
def mega_moe_packed(config: cutlass.Constexpr[Sm90Config], args: Arguments, stream: Any):
    """As `mega_moe`, with weights whose scales are in their tiles; a function of its own, for TVM FFI takes the arguments' types from its
    signature.
    """
    launch(mega_moe_kernel(config, args), config, stream)


@cute.jit
def mega_moe_biased(config: cutlass.Constexpr[Sm90Config], args: BiasedArguments, stream: Any):
    """The same of a layer with biases, however its weights are stored."""
    launch(mega_moe_kernel(config, args), config, stream)

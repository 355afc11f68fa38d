"""The SM90 kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0-3   | dispatch, pull, clean | dispatch |
| 4     | token loader          | loader |
| 5     | weight loader         | loader |
| 6     | store of Linear1 tiles | loader |
| 7     | tile scheduler        | loader |
| 8-15  | math, epilogues, combine | epilogue |

Where warps decode packed weights, for tiles of many tokens, a warpgroup does what two do otherwise:

| warps | role | registers |
|---|---|---|
| 0, 1  | dispatch, pull, clean | loader |
| 2     | token and weight loader | loader |
| 3     | tile scheduler, store of Linear1 tiles | loader |
| 4-11  | math, epilogues, combine | epilogue |
| 12-15 | decode | decode |
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
from ..layouts.tile import DISPATCH_WARPS, LOADER_WARPS
from ..setup import acquire_maps
from ..tile_scheduler import schedule_tiles
from .config import Sm90Config
from .context import Sm90Context
from .decode import decode_weights
from .load import load_operands, load_tokens, load_weights
from .maps import NUM_MAPS
from .math import math
from .store import schedule_and_store, store_tiles

TOKENS_WARP, WEIGHTS_WARP, STORE_WARP, SCHEDULER_WARP = range(DISPATCH_WARPS, DISPATCH_WARPS + LOADER_WARPS)
OPERANDS_WARP, DEALING_WARP = 2, 3
"""Where warps decode."""


@cute.jit
def initialise(ctx: Sm90Context, warp: Any):
    """mbarriers, visible to the cluster and to TMA."""
    tokens, barriers, table = (OPERANDS_WARP, DEALING_WARP, 0) if ctx.config.decoded else (TOKENS_WARP, WEIGHTS_WARP, STORE_WARP)
    if warp == barriers:
        init_barriers(ctx)
    if warp == tokens:
        acquire_maps(ctx, NUM_MAPS)
    if cutlass.const_expr(ctx.config.packed):
        if warp == table:
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
def run_other_warp(ctx: Sm90Context, warp: Any, thread: Any):
    """One of the four beside math and decode warps."""
    set_max_registers(ctx.config.registers.loader, grow=False)
    if warp < ctx.config.dispatch_warps:
        dispatch(ctx, thread)
    elif warp == OPERANDS_WARP:
        load_operands(ctx)
    else:
        schedule_and_store(ctx)


@cute.jit
def run_math_warp(ctx: Sm90Context, warp: Any):
    """One of the eight."""
    set_max_registers(ctx.config.registers.epilogue, grow=True)
    math(ctx, warp - first_math_warp(ctx.config))


@cute.jit
def run_decode_warp(ctx: Sm90Context, warp: Any):
    """One of the four that a kernel with packed weights and large tiles adds."""
    set_max_registers(ctx.config.registers.decode, grow=False)
    decode_weights(ctx, warp - first_decode_warp(ctx.config))


def first_math_warp(config: Sm90Config) -> int:
    """They come after dispatch and loaders."""
    return config.dispatch_warps + config.loader_warps


def first_decode_warp(config: Sm90Config) -> int:
    """They come last."""
    return first_math_warp(config) + config.epilogue_warps


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
    if cutlass.const_expr(config.decoded):
        if warp < first_math_warp(config):
            run_other_warp(ctx, warp, thread)
        elif warp >= first_decode_warp(config):
            run_decode_warp(ctx, warp)
        else:
            run_math_warp(ctx, warp)  # last: where decode warps come after them, ptxas gives them too few registers
    else:
        if warp < DISPATCH_WARPS:
            set_max_registers(config.registers.dispatch, grow=False)
            dispatch(ctx, thread)
        elif warp < first_math_warp(config):
            set_max_registers(config.registers.loader, grow=False)
            run_loader_warp(ctx, warp)
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

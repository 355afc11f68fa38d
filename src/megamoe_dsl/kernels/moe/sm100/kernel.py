"""The kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts.

| warps | role | registers |
|---|---|---|
| 0-3   | dispatch, pull, clean | dispatch |
| 4     | token loader          | loader |
| 5     | weight loader         | loader |
| 6     | MMA (even CTA)        | loader |
| 7     | scheduler, TMEM       | loader |
| 8-    | epilogue, combine     | epilogue |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute

from ....blocks.setup import acquire_maps, init_barriers
from ....blocks.sm100 import tensor_memory
from ....device.cluster import sync_cluster
from ....device.warp import set_max_registers, smem_base
from ..arguments import Arguments
from ..context import Context
from ..dispatch import dispatch
from ..layouts.tile import DISPATCH_WARPS, LOADER_WARPS
from ..tile_scheduler import schedule_tiles
from .config import Sm100Config
from .epilogue import epilogue
from .load import load_tokens, load_weights
from .maps import NUM_MAPS
from .mma import issue_mma

TOKENS_WARP, WEIGHTS_WARP, MMA_WARP, SCHEDULER_WARP = range(LOADER_WARPS)  # after those before the loaders
FIRST_EPILOGUE_WARP = DISPATCH_WARPS + LOADER_WARPS


@cute.jit
def initialise(ctx: Context, warp: Any, first: cutlass.Constexpr[int] = DISPATCH_WARPS):
    """mbarriers and TMEM, visible to the pair; `first` is the number of the first loader warp."""
    if warp == first + WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == first + TOKENS_WARP:
        acquire_maps(ctx, NUM_MAPS)
    if warp == first + SCHEDULER_WARP:
        tensor_memory.allocate(ctx)
    sync_cluster()


@cute.jit
def finalise(ctx: Context, warp: Any, first: cutlass.Constexpr[int] = DISPATCH_WARPS):
    """Neither CTA leaves while the other may still reach its SMEM or TMEM."""
    sync_cluster()
    if warp == first + SCHEDULER_WARP:
        tensor_memory.free(ctx)


@cute.jit
def run_loader_warp(ctx: Context, warp: Any, schedule: Callable[..., Any], first: cutlass.Constexpr[int] = DISPATCH_WARPS):
    """One of the four warps before the epilogue: token loader, weight loader, MMA or scheduler, which runs `schedule`."""
    if warp == first + TOKENS_WARP:
        load_tokens(ctx)
    elif warp == first + WEIGHTS_WARP:
        load_weights(ctx)
    elif warp == first + MMA_WARP:
        if ctx.cta_rank == 0:
            issue_mma(ctx)
    else:
        tensor_memory.check_first_column(ctx)
        schedule(ctx)


@cute.kernel
def mega_moe_kernel(config: cutlass.Constexpr[Sm100Config], args: Arguments):
    """One CTA, from set-up to tear-down."""
    alignment = config.smem.region.alignment
    buffer: Any = cutlass.Array(cutlass.Int8, config.smem.num_bytes, space=cutlass.AddressSpace.smem, alignment=alignment)
    warp = cute.arch.warp_idx()
    thread = cute.arch.thread_idx()[0]
    ctx = Context(config, args, smem_base(buffer), cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    initialise(ctx, warp)
    if warp < DISPATCH_WARPS:
        set_max_registers(config.registers.dispatch, grow=False)
        dispatch(ctx, thread)
    elif warp < FIRST_EPILOGUE_WARP:
        set_max_registers(config.registers.loader, grow=False)
        run_loader_warp(ctx, warp, schedule_tiles)
    else:
        set_max_registers(config.registers.epilogue, grow=True)
        epilogue(ctx, thread - 32 * FIRST_EPILOGUE_WARP)
    finalise(ctx, warp)

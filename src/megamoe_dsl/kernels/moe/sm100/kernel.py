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

from ....blocks.setup import acquire_maps, init_barriers, shared_memory
from ....blocks.sm100 import tensor_memory
from ....blocks.warp_roles import WarpRole, run_roles, warps
from ....device.cluster import sync_cluster
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
def initialize(ctx: Context, warp: Any, first: cutlass.Constexpr[int] = DISPATCH_WARPS):
    """mbarriers and TMEM, visible to the pair; `first` is the number of the first loader warp."""
    if warp == first + WEIGHTS_WARP:
        init_barriers(ctx)
    if warp == first + TOKENS_WARP:
        acquire_maps(ctx, NUM_MAPS)
    if warp == first + SCHEDULER_WARP:
        tensor_memory.allocate(ctx)
    sync_cluster()


@cute.jit
def finalize(ctx: Context, warp: Any, first: cutlass.Constexpr[int] = DISPATCH_WARPS):
    """Neither CTA leaves while the other may still reach its SMEM or TMEM."""
    sync_cluster()
    if warp == first + SCHEDULER_WARP:
        tensor_memory.free(ctx)


def loader_roles(schedule: Callable[[Any], Any], first: int = 0) -> tuple[WarpRole, ...]:
    """The four warps from warp `first` on; the scheduler warp runs `schedule`."""
    return (
        WarpRole("token loader", warps(first + TOKENS_WARP), lambda ctx, warp: load_tokens(ctx)),
        WarpRole("weight loader", warps(first + WEIGHTS_WARP), lambda ctx, warp: load_weights(ctx)),
        WarpRole("MMA", warps(first + MMA_WARP), lambda ctx, warp: multiply(ctx)),
        WarpRole("scheduler", None, lambda ctx, warp: run_scheduler(ctx, schedule)),
    )


@cute.jit
def multiply(ctx: Context):
    """The MMA warp of the even CTA multiplies for the pair."""
    if ctx.cta_rank == 0:
        issue_mma(ctx)


def run_scheduler(ctx: Context, schedule: Callable[[Any], Any]) -> None:
    """The scheduler warp, which has allocated the tensor memory."""
    tensor_memory.check_first_column(ctx)
    schedule(ctx)


def roles(config: Sm100Config) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    registers, loaders, last = config.registers, loader_roles(schedule_tiles, DISPATCH_WARPS), FIRST_EPILOGUE_WARP

    def finish(ctx: Any, warp: Any) -> None:
        epilogue(ctx, cute.arch.thread_idx()[0] - 32 * last)

    return (
        WarpRole("dispatch", range(DISPATCH_WARPS), lambda ctx, warp: dispatch(ctx, cute.arch.thread_idx()[0]), registers.dispatch),
        WarpRole("loaders", range(DISPATCH_WARPS, last), lambda ctx, warp: run_roles(loaders, ctx, warp), registers.loader),
        WarpRole("epilogue", None, finish, registers.epilogue, grows=True),
    )


@cute.kernel
def mega_moe_kernel(config: cutlass.Constexpr[Sm100Config], args: Arguments):
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    ctx = Context(config, args, shared_memory(config.smem.region), cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    initialize(ctx, warp)
    run_roles(roles(config), ctx, warp)
    finalize(ctx, warp)

"""The kernel: warps to roles, set-up and tear-down of a CTA.  Only this file knows warp indices and register counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute

from ....blocks.cta import Step, WarpRole, acquire_maps, init_barriers, run_roles, set_up, shared_memory, warp_group
from ....blocks.sm100.pair_warps import SCHEDULER_WARP, TOKENS_WARP, WEIGHTS_WARP, allocate_columns, end_pair, loader_roles
from ..context import Context
from ..dispatch import dispatch
from ..layouts.smem_plan import DISPATCH_WARPS, LOADER_WARPS
from ..tile_scheduler import schedule_tiles
from .epilogue import epilogue
from .load import issue_mma, load_tokens, load_weights

FIRST_EPILOGUE_WARP = DISPATCH_WARPS + LOADER_WARPS


def steps(first: int) -> tuple[Step, ...]:
    """Which of the loader warps, from warp `first` on, sets up mbarriers, tensor maps and TMEM."""
    return (first + WEIGHTS_WARP, init_barriers), (first + TOKENS_WARP, acquire_maps), (first + SCHEDULER_WARP, allocate_columns)


def loaders(schedule: Callable[[Any], Any], first: int = 0) -> tuple[WarpRole, ...]:
    """The four warps from warp `first` on; the scheduler warp runs `schedule`."""
    return loader_roles(load_tokens, load_weights, issue_mma, schedule, first)


def roles(config: Any) -> tuple[WarpRole, ...]:
    """All warps of a CTA."""
    registers, last = config.registers, FIRST_EPILOGUE_WARP

    def finish(ctx: Any, warp: Any) -> None:
        epilogue(ctx, cute.arch.thread_idx()[0] - 32 * last)

    return (
        WarpRole("dispatch", range(DISPATCH_WARPS), lambda ctx, warp: dispatch(ctx, cute.arch.thread_idx()[0]), registers["dispatch"]),
        warp_group("loaders", range(DISPATCH_WARPS, last), loaders(schedule_tiles, DISPATCH_WARPS), registers["loader"]),
        WarpRole("epilogue", None, finish, registers["epilogue"], grows=True),
    )


@cute.kernel
def mega_moe_kernel(config: cutlass.Constexpr[Any], args: Any):
    """One CTA, from set-up to tear-down."""
    warp = cute.arch.warp_idx()
    ctx = Context(config, args, shared_memory(config.smem.region), cute.arch.block_idx()[0], cute.arch.block_idx_in_cluster())
    set_up(ctx, warp, steps(DISPATCH_WARPS))
    run_roles(roles(config), ctx, warp)
    end_pair(ctx, warp, DISPATCH_WARPS)

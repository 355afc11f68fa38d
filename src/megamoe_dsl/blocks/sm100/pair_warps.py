"""What CTA pairs have in common in every kernel that multiplies with tensor memory: the first warps of a CTA, its end, and the tensor
memory, of which one warp of each CTA allocates all columns that the kernel plans with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute

from ...device import tcgen05
from ...device.memory import load_shared_u32
from ...device.ptx import emit
from ...device.warp import sync_cluster
from ..cta import WarpRole, one_warp


def allocate_columns(ctx: Any) -> None:
    tcgen05.allocate(ctx.shared("tmem_address"), ctx.config.tmem.allocated)


LOADER_WARPS = 4
TOKENS_WARP, WEIGHTS_WARP, MMA_WARP, SCHEDULER_WARP = range(LOADER_WARPS)
"""By their place among the first warps; the scheduler warp also allocates tensor memory."""
Run = Callable[[Any], Any]


def loader_roles(load_tokens: Run, load_weights: Run, multiply: Run, schedule: Run, first: int = 0) -> tuple[WarpRole, ...]:
    """Roles of four warps, starting with warp `first`; `multiply` runs in the even CTA only."""
    return (
        one_warp("token loader", first + TOKENS_WARP, load_tokens),
        one_warp("weight loader", first + WEIGHTS_WARP, load_weights),
        one_warp("MMA", first + MMA_WARP, lambda ctx: run_in_even_cta(ctx, multiply)),
        one_warp("scheduler", None, lambda ctx: run_scheduler(ctx, schedule)),
    )


@cute.jit
def run_in_even_cta(ctx: Any, multiply: cutlass.Constexpr[Run]):
    if ctx.cta_rank == 0:
        multiply(ctx)


@cute.jit
def run_scheduler(ctx: Any, schedule: cutlass.Constexpr[Run]):
    """Traps unless the tensor memory that this warp has allocated begins at column 0: nothing else allocates it on this SM."""
    if load_shared_u32(ctx.shared("tmem_address")) != 0:
        emit("trap;")
    schedule(ctx)


@cute.jit
def end_pair(ctx: Any, warp: Any, first: cutlass.Constexpr[int] = 0):
    """Keeps both CTAs alive until neither accesses the other's SMEM or TMEM, then frees tensor memory."""
    sync_cluster()
    if warp == first + SCHEDULER_WARP:
        tcgen05.free(load_shared_u32(ctx.shared("tmem_address")), ctx.config.tmem.allocated)

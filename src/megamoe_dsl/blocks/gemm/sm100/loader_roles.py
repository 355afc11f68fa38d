"""The first four warps of a kernel that multiplies in pairs, which begin and end its tensor memory: rows of its table of roles.

| warps | role |
|---|---|
| 0 | token loader; where other warps gather rows, lists them or idles |
| 1 | weight loader |
| 2 | MMA (even CTA); in odd CTAs announces scales that are copied |
| 3 | scheduler: tiles (first CTA); TMEM |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute

from ....device.cluster import sync_cluster
from ...sm100 import tensor_memory
from ...warp_roles import WarpRole, warps
from ..context import GemmContext
from .config import LOADER_WARPS, Sm100GemmConfig
from .load import load_weights

TOKENS_WARP, WEIGHTS_WARP, MMA_WARP, SCHEDULER_WARP = range(LOADER_WARPS)


@cute.jit
def schedule(ctx: GemmContext, publish_tiles: cutlass.Constexpr[Callable[[Any], Any]]):
    """Runs the scheduler warp, which traps unless its tensor memory begins at column 0 and then publishes work tiles."""
    tensor_memory.check_first_column(ctx)
    publish_tiles(ctx)


def loader_roles(config: Sm100GemmConfig, publish_tiles: Callable[[Any], Any]) -> tuple[WarpRole, ...]:
    """`publish_tiles` is what the scheduler warp does."""
    tokens = WarpRole("token loader", warps(TOKENS_WARP), lambda ctx, warp: config.rows.load(ctx))
    weights = WarpRole("weight loader", warps(WEIGHTS_WARP), lambda ctx, warp: load_weights(ctx))
    multiply = WarpRole("MMA", warps(MMA_WARP), lambda ctx, warp: config.rows.multiply(ctx))
    scheduler = WarpRole("scheduler", warps(SCHEDULER_WARP), lambda ctx, warp: schedule(ctx, publish_tiles))
    if not config.rows.warps:
        return (tokens, weights, multiply, replace(scheduler, warps=None))
    return (weights, multiply, scheduler, *((replace(tokens, warps=None),) if config.rows.gathers else ()))


@cute.jit
def end(ctx: GemmContext, warp: Any):
    """Neither CTA leaves while the other may still reach its SMEM or TMEM."""
    sync_cluster()
    if warp == SCHEDULER_WARP:
        tensor_memory.free(ctx)

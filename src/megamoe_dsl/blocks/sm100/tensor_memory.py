"""The tensor memory of a kernel: all columns that it plans with, from the first on, by one warp of each CTA of a pair."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from ...device import tcgen05
from ...device.memory import load_shared_u32
from ...device.ptx import emit


def allocate(ctx: Any) -> None:
    """The address goes to the plan's `tmem_address`."""
    tcgen05.allocate(ctx.shared("tmem_address"), ctx.config.tmem.allocated)


@cute.jit
def check_first_column(ctx: Any):
    """The plan counts columns from 0: nothing else allocates TMEM on this SM."""
    if load_shared_u32(ctx.shared("tmem_address")) != 0:
        emit("trap;")


def free(ctx: Any) -> None:
    """When all warps of both CTAs have finished with it."""
    tcgen05.free(load_shared_u32(ctx.shared("tmem_address")), ctx.config.tmem.allocated)

"""Stamps of a traced kernel (kernels/mega_moe/layouts/trace.py).  Without `config.trace` nothing of this is compiled."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from ...device.stamps import StampBuffer, add_stamp, clear_stamps
from ...device.warp import sync_warp
from ...layouts.stamps import trace_buffer
from .context import Context
from .layouts.trace import Activity, Role


def detail_of(tile: Any) -> Any:
    """The tile, as a stamp carries it."""
    return 2 * (tile.pool_block * 256 + tile.n_block) + tile.phase


def stamps_of(ctx: Context) -> StampBuffer:
    """Of this CTA."""
    buffer = trace_buffer(ctx.config.num_sms, ctx.config.num_threads // 32)
    return StampBuffer(buffer, ctx.config.smem.region, ctx.args.trace, ctx.smem, ctx.sm)


@cute.jit
def begin(ctx: Context, role: cutlass.Constexpr[Role]):
    """The first stamp of a warp."""
    if cutlass.const_expr(ctx.config.trace):
        clear_stamps(stamps_of(ctx))
        stamp(ctx, Activity.START, int(role))


@cute.jit
def stamp(ctx: Context, activity: cutlass.Constexpr[Activity], detail: Any = 0):
    """The time since the warp's last stamp went into `activity`."""
    if cutlass.const_expr(ctx.config.trace):
        add_stamp(stamps_of(ctx), int(activity), detail)
        sync_warp()

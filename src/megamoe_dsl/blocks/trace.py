"""Stamps of a traced kernel (layouts/records.py).  Without `config.trace` nothing of this is compiled."""

from __future__ import annotations

from typing import Any, Protocol

import cutlass
import cutlass.cute as cute

from ..device.stamps import StampBuffer, add_stamp, clear_stamps
from ..device.warp import sync_warp
from ..layouts.records import Activity, Role, tile_detail, trace_buffer


class Traced(Protocol):
    """What roles know: a configuration with `trace`, `num_sms`, `num_threads` and a plan `smem`; arguments, of which a traced kernel has
    `trace`; the shared address of the plan; the CTA's index in the grid."""

    @property
    def config(self) -> Any:
        """Configuration, known at compile time."""

    @property
    def args(self) -> Any:
        """Run-time arguments of the launch."""

    @property
    def smem(self) -> Any:
        """Shared address of the SMEM plan."""

    @property
    def sm(self) -> Any:
        """Index of the CTA in the grid."""


def detail_of(tile: Any) -> Any:
    """The tile, as a stamp carries it."""
    return tile_detail(tile.pool_block, tile.n_block, tile.phase)


def stamps_of(ctx: Traced) -> StampBuffer:
    """The stamp buffer of this CTA's warps."""
    buffer = trace_buffer(ctx.config.num_sms, ctx.config.num_threads // 32)
    return StampBuffer(buffer, ctx.config.smem.region, ctx.args.trace, ctx.smem, ctx.sm)


@cute.jit
def begin(ctx: Traced, role: cutlass.Constexpr[Role]):
    """The first stamp of a warp."""
    if cutlass.const_expr(ctx.config.trace):
        clear_stamps(stamps_of(ctx))
        stamp(ctx, Activity.START, int(role))


@cute.jit
def stamp(ctx: Traced, activity: cutlass.Constexpr[Activity], detail: Any = 0):
    """The time since the warp's last stamp went into `activity`."""
    if cutlass.const_expr(ctx.config.trace):
        add_stamp(stamps_of(ctx), int(activity), detail)
        sync_warp()

"""Stamps of a traced kernel (kernels/mega_moe/layouts/trace.py).  Without `config.trace` nothing of this is compiled."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import load_shared_u32, store_shared_u32, store_u32, store_u64
from ...device.warp import sync_warp
from .context import Context
from .layouts.trace import CAPACITY, STAMP, Activity, Role, trace_buffer


def detail_of(tile: Any) -> Any:
    """The tile, as a stamp carries it."""
    return 2 * (tile.pool_block * 256 + tile.n_block) + tile.phase


@cute.jit
def begin(ctx: Context, role: cutlass.Constexpr[Role]):
    """The first stamp of a warp."""
    if cutlass.const_expr(ctx.config.trace):
        if cute.arch.lane_idx() == 0:
            store_shared_u32(ctx.shared("trace_count", cute.arch.warp_idx()), 0)
        stamp(ctx, Activity.START, int(role))


@cute.jit
def stamp(ctx: Context, activity: cutlass.Constexpr[Activity], detail: Any = 0):
    """The time since the warp's last stamp went into `activity`.  Lane 0 writes it, and a zero behind it; those beyond the capacity are
    dropped."""
    if cutlass.const_expr(ctx.config.trace):
        if cute.arch.lane_idx() == 0:
            warp = cute.arch.warp_idx()
            counter = ctx.shared("trace_count", warp)
            place = load_shared_u32(counter)
            if place < CAPACITY:
                region = trace_buffer(ctx.config.num_sms, ctx.config.num_threads // 32)
                address = region.address(ctx.args.trace, "stamps", ctx.sm, warp, place)
                store_u64(STAMP.address(address, "time"), cute.arch.globaltimer())
                store_u32(STAMP.address(address, "activity"), Int32(int(activity)))
                store_u32(STAMP.address(address, "detail"), Int32(detail))
                store_shared_u32(counter, place + 1)
                if place + 1 < CAPACITY:
                    # An earlier launch may have given this SM more tiles.
                    store_u64(STAMP.address(address + STAMP.size, "time"), Int64(0))
        sync_warp()

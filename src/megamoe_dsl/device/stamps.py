"""Stamps of a traced kernel: the time at which a warp finished something, in the order in which it did (layouts/records.py).

Without `config.trace` no stamp is compiled.  With it a context `ctx` has the address `args.trace` of a `trace_buffer`, the CTA's index `sm`
in the grid, and in shared memory `trace_count`, u32 [warps]: stamps so far.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..layouts.records import CAPACITY, STAMP, Activity, Role, tile_detail, trace_buffer
from .memory import load_shared_u32, store_shared_u32, store_u32, store_u64
from .warp import sync_warp


def detail_of(tile: Any) -> Any:
    return tile_detail(tile.pool_block, tile.n_block, tile.phase)


@cute.jit
def begin(ctx: Any, role: cutlass.Constexpr[Role]):
    if cutlass.const_expr(ctx.config.trace):
        if cute.arch.lane_idx() == 0:
            store_shared_u32(ctx.shared("trace_count", cute.arch.warp_idx()), 0)
        stamp(ctx, Activity.START, int(role))


@cute.jit
def stamp(ctx: Any, activity: cutlass.Constexpr[Activity], detail: Any = 0):
    """Records that the time since the warp's last stamp went into `activity`.  Lane 0 writes it, then a zero, while there is room."""
    if cutlass.const_expr(ctx.config.trace):
        if cute.arch.lane_idx() == 0:
            warp = cute.arch.warp_idx()
            counter = ctx.shared("trace_count", warp)
            place = load_shared_u32(counter)
            if place < CAPACITY:
                buffer = trace_buffer(ctx.config.num_sms, ctx.config.num_threads // 32)
                address = buffer.address(ctx.args.trace, "stamps", ctx.sm, warp, place)
                store_u64(STAMP.address(address, "time"), cute.arch.globaltimer())
                store_u32(STAMP.address(address, "activity"), Int32(int(activity)))
                store_u32(STAMP.address(address, "detail"), Int32(detail))
                store_shared_u32(counter, place + 1)
                if place + 1 < CAPACITY:
                    # The zero ends the list: stamps of an earlier launch, in which this SM had more work, may follow.
                    store_u64(STAMP.address(address + STAMP.size, "time"), Int64(0))
        sync_warp()

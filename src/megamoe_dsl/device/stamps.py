"""Stamps of a traced kernel: the time at which a warp finished something, in the order in which it did (layouts/records.py).

Without `config.trace` no stamp is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..layouts.records import CAPACITY, STAMP, Activity, Role, tile_detail, trace_buffer
from ..layouts.region import Region
from .memory import load_shared_u32, store_shared_u32, store_u32, store_u64
from .warp import sync_warp


@dataclass(frozen=True)
class StampBuffer:
    """Where the warps of a CTA leave stamps.

    buffer   layouts.records.trace_buffer of the grid, at global `address`
    plan     the CTA's shared memory, at `smem`; its field `trace_count`, u32 [warps], counts stamps so far
    sm       the CTA's index in the grid
    """

    buffer: cutlass.Constexpr[Region]
    plan: cutlass.Constexpr[Region]
    address: Int64
    smem: Int32
    sm: Int32

    def counter(self, warp: Any) -> Any:
        return self.plan.address(self.smem, "trace_count", warp)


@cute.jit
def clear_stamps(stamps: StampBuffer):
    """A warp, before its first stamp."""
    if cute.arch.lane_idx() == 0:
        store_shared_u32(stamps.counter(cute.arch.warp_idx()), 0)


@cute.jit
def add_stamp(stamps: StampBuffer, activity: cutlass.Constexpr[int], detail: Any):
    """The time since the warp's last stamp went into `activity`.  Lane 0 writes it, and a zero behind it; those beyond the capacity are
    dropped."""
    if cute.arch.lane_idx() == 0:
        warp = cute.arch.warp_idx()
        counter = stamps.counter(warp)
        place = load_shared_u32(counter)
        if place < CAPACITY:
            address = stamps.buffer.address(stamps.address, "stamps", stamps.sm, warp, place)
            store_u64(STAMP.address(address, "time"), cute.arch.globaltimer())
            store_u32(STAMP.address(address, "activity"), Int32(activity))
            store_u32(STAMP.address(address, "detail"), Int32(detail))
            store_shared_u32(counter, place + 1)
            if place + 1 < CAPACITY:
                # The zero ends the list: stamps of an earlier launch, in which this SM had more work, may follow.
                store_u64(STAMP.address(address + STAMP.size, "time"), Int64(0))


class Traced(Protocol):
    """What roles know: a configuration with `trace`, `num_sms`, `num_threads` and a plan `smem`; arguments, of which a traced kernel has
    `trace`; the shared address of the plan; the CTA's index in the grid."""

    @property
    def config(self) -> Any: ...
    @property
    def args(self) -> Any: ...
    @property
    def smem(self) -> Any: ...
    @property
    def sm(self) -> Any: ...


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

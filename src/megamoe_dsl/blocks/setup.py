"""What a CTA sets up before its roles begin, in every kernel: its shared memory, its mbarriers, and its tensor
maps where they are a table in global memory."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..device.mbarrier import fence_init, init
from ..device.sync import let_next_launch_begin, wait_for_launches_before
from ..device.tma import acquire_tensor_map, prefetch_tensor_map
from ..device.warp import elect, smem_base, sync_cluster
from ..hardware.tensor_map import DESCRIPTOR_BYTES
from ..layouts.region import Region


def shared_memory(plan: Region) -> Int32:
    """Shared address of so much dynamic shared memory."""
    buffer: Any = cutlass.Array(cutlass.Int8, plan.size, space=cutlass.AddressSpace.smem, alignment=plan.alignment)
    return smem_base(buffer)


@cute.jit
def init_barriers(ctx: Any):
    """All mbarriers of the SMEM plan, visible to TMA and to other CTAs of the cluster, by one elected thread."""
    if elect():
        for row in ctx.config.smem.barriers:
            for i in cutlass.range_constexpr(row.count):
                init(ctx.barrier(row.name, i), row.arrivals)
        fence_init()


@cute.jit
def acquire_maps(ctx: Any, count: cutlass.Constexpr[int]):
    """The table of tensor maps.  The host has copied it to global memory, so every CTA needs a fence before TMA uses it (CUDA Programming
    Guide, "Using TMA to transfer multi-dimensional arrays")."""
    if elect():
        for i in cutlass.range_constexpr(count):
            acquire_tensor_map(ctx.args.maps + i * DESCRIPTOR_BYTES)
        for i in cutlass.range_constexpr(count):
            prefetch_tensor_map(ctx.args.maps + i * DESCRIPTOR_BYTES)


@cute.jit
def set_up_together(ctx: Any):
    """Waits for all threads of the cluster: what each has set up is visible to the others."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()
    else:
        cute.arch.sync_threads()


@cute.jit
def end_together(ctx: Any):
    """Waits for the cluster: no CTA leaves while another may still reach its SMEM."""
    if cutlass.const_expr(ctx.config.cluster > 1):
        sync_cluster()


def begin() -> None:
    """All that comes before needs nothing of the launches before this one, nor may what the next launch does before its own."""
    let_next_launch_begin()
    wait_for_launches_before()


def begin_after_others() -> None:
    """The same, for a launch whose next one may read, before it waits, what launches before this one wrote: they have ended by then.

    The next launch begins when every CTA of this one has let it, and each does so when its wait is over."""
    wait_for_launches_before()
    let_next_launch_begin()

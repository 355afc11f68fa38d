"""What a CTA sets up before its roles begin, in every kernel: its shared memory and its mbarriers."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..device.mbarrier import fence_init, init
from ..device.warp import elect, smem_base
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

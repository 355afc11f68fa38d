"""What a CTA of a mega kernel sets up before its roles begin, on every architecture, besides its mbarriers (blocks/setup.py)."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from ...device.tma import acquire_tensor_map, prefetch_tensor_map
from ...device.warp import elect
from ...hardware.tensor_map import DESCRIPTOR_BYTES
from .context import Context


@cute.jit
def acquire_maps(ctx: Context, count: cutlass.Constexpr[int]):
    """The table of tensor maps.  The host has copied it to global memory, so every CTA needs a fence before TMA uses it (CUDA Programming
    Guide, "Using TMA to transfer multi-dimensional arrays")."""
    if elect():
        for i in cutlass.range_constexpr(count):
            acquire_tensor_map(ctx.args.maps + i * DESCRIPTOR_BYTES)
        for i in cutlass.range_constexpr(count):
            prefetch_tensor_map(ctx.args.maps + i * DESCRIPTOR_BYTES)

"""What a CTA of a GEMM sets up before its roles begin, on every architecture, besides its mbarriers (blocks/setup.py)."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from ...device.tma import prefetch_tensor_map
from ...device.warp import elect
from .context import GemmContext


@cute.jit
def prefetch_maps(ctx: GemmContext, names: cutlass.Constexpr[tuple[str, ...]]):
    """These tensor maps into the descriptor cache."""
    if elect():
        for name in names:
            prefetch_tensor_map(getattr(ctx.maps, name))

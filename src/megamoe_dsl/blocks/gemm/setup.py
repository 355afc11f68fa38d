"""What a CTA of a GEMM sets up before its roles begin, on every architecture, besides its mbarriers (blocks/setup.py)."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device.tma import prefetch_tensor_map
from ...device.warp import elect
from .context import GemmContext


@cute.jit
def prefetch_maps(ctx: GemmContext, names: cutlass.Constexpr[tuple[str, ...]]):
    """These tensor maps into the descriptor cache."""
    if elect():
        for name in names:
            prefetch_tensor_map(getattr(ctx.maps, name))


def rank_in_cluster(config: Any) -> Int32:
    """This CTA's place among those of its cluster."""
    return Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)

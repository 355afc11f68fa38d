"""The GEMM of a dispatch whose tokens lie in one row each, on SM100."""

from __future__ import annotations

from dataclasses import dataclass

from .....blocks.gemm.gather.sm100.context import PairGatherContext
from ..context import GatheringGemm


@dataclass(frozen=True)
class GatheringPairGemm(GatheringGemm, PairGatherContext):
    """Warps of both CTAs gather the rows of a pair's tile.  They wait for these as the index warp does: PTX does not say that an arrival of
    `cp.async` releases what its thread has seen."""

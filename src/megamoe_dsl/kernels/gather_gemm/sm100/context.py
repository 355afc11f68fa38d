"""What every role needs: that of a GEMM that gathers its rows, and stages whose scales threads copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int64

from ...gemm.work_tile import GemmTile
from ..context import GatherContext
from .stage import CopiedStage


@dataclass(frozen=True)
class PairGatherMaps:
    """Addresses of the tensor maps."""

    tokens: Int64
    weights: Int64
    sfb: Int64
    d: Int64


@dataclass(frozen=True)
class PairGatherContext(GatherContext):
    """`config` is a `Sm100GatherConfig`."""

    def row_in_atom(self, tile: GemmTile) -> Any:
        """Scales of rows are put where the tile begins."""
        return 0

    @property
    def first_stage(self) -> CopiedStage:
        """Of the ring of operands."""
        first = super().first_stage
        return CopiedStage(first.plan, first.cluster, first.smem, first.ring)

"""What every role needs: that of a GEMM that gathers its rows, and stages whose scales threads copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64

from .....device.stage import Stage
from .....hardware.cta_pair import CLUSTER
from ...work_tile import GemmTile
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

    @property
    def place_in_pair(self) -> Any:
        """0 in the even CTA."""
        return self.cta_rank if self.config.pairs == 1 else self.cta_rank & 1

    @property
    def pair(self) -> Any:
        """This CTA's pair among those of the cluster."""
        return 0 if self.config.pairs == 1 else self.cta_rank >> 1

    @property
    def own_pair(self) -> Any:
        """Mask of the CTAs of its pair."""
        return super().own_pair if self.config.pairs == 1 else Int32(3) << (self.cta_rank & 2)

    @property
    def same_rows(self) -> Any:
        """Mask of the CTAs that have the same rows of A: one of each pair."""
        return Int32(1 | 1 << CLUSTER) << self.place_in_pair

    def row_in_atom(self, tile: GemmTile) -> Any:
        """Scales of rows are put where the tile begins."""
        return 0

    @property
    def first_stage(self) -> Stage:
        first = super().first_stage
        return CopiedStage(first.plan, first.cluster, first.smem, first.ring) if self.config.problem.formats.scaled else first

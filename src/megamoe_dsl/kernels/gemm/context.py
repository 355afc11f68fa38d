"""What every role of the GEMM kernel needs: the configuration, this CTA's place, and addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Int32, Int64

from ...device.cluster import ClusterPlace
from ...device.stage import Stage
from ...device.tile_queue import TileQueue
from ...layouts.arith import select
from .arguments import GemmArguments
from .config import GemmConfig
from .smem_plan import WORK_TILES
from .work_tile import GemmTile


@dataclass(frozen=True)
class GemmMaps:
    """Addresses of the tensor maps."""

    tokens: Int64
    tokens_part: Int64
    weights: Int64
    weights_part: Int64
    sfa: Int64
    d: Int64


@dataclass(frozen=True)
class PairStage(Stage):
    """A stage that other CTAs of the cluster may write; a CTA whose partner has no tile gives it back to itself as often as there are
    CTAs, so that one count of arrivals serves both.

    cta_rank  this CTA's place in the cluster
    alone     whether its partner has no tile
    """

    cta_rank: Int32
    alone: Int32

    def reader_releases(self, lane: Any) -> Any:
        """Each lane another CTA's, or all this one's."""
        return select(self.alone != 0, self.cta_rank, lane)


@dataclass(frozen=True)
class GemmContext:
    """`smem` is the shared address of the plan, `sm` the CTA's index in the grid, `cta_rank` its place in the cluster."""

    config: cutlass.Constexpr[GemmConfig]
    args: GemmArguments
    maps: GemmMaps
    smem: Int32
    sm: Int32
    cta_rank: Int32

    @property
    def place(self) -> ClusterPlace:
        """This CTA in its cluster."""
        return ClusterPlace(self.cta_rank, self.config.cluster)

    @property
    def first_stage(self) -> Stage:
        """Of the ring of operands."""
        config = self.config
        return Stage.first(config.smem.region, self.smem, config.num_stages, config.cluster)

    @property
    def first_read_stage(self) -> Stage:
        """The same for the math warps."""
        first = self.first_stage
        if self.config.cluster == 1:
            return first
        return PairStage(first.plan, first.cluster, first.smem, first.ring, self.cta_rank, Int32(0))

    def of_tile(self, stage: Stage, tile: GemmTile) -> Stage:
        """A stage that the math warps read for a tile."""
        return replace(stage, alone=Int32(tile.alone)) if isinstance(stage, PairStage) else stage

    @property
    def first_tile(self) -> TileQueue:
        """Of the queue of work tiles."""
        return TileQueue.start(self.config.smem.region, self.smem, WORK_TILES, self.config.cluster)

    def is_half(self, tile: GemmTile) -> Any:
        """Whether a tile is multiplied as one of 64 rows."""
        return tile.valid_m <= self.config.block_m // 2 if self.config.halves else False

    def shared(self, name: str, *index: Any) -> Any:
        """Shared address of an element of the SMEM plan."""
        return self.config.smem.region.address(self.smem, name, *index)

    def barrier(self, name: str, index: Any = 0) -> Any:
        """Shared address of an mbarrier (barriers.py)."""
        return self.shared(f"{name}_barrier", index)

"""Shared memory of one CTA of the GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...hardware.operand_tile import OPERAND_ALIGNMENT, ROW_BYTES
from ...layouts.mbarrier import MBarrier
from ...layouts.region import F32, U8, U32, U64, Field, Region
from .barriers import EXCHANGING_THREADS, VECTOR, WORK_TILES, barrier_table
from .rows import RowSource
from .tile import WARPS_PER_GROUP, TileShape
from .trace_counts import trace_counts
from .weights import WeightSource


@dataclass(frozen=True)
class GemmSmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field.

    fetchers  CTAs of a cluster that may fetch operands for one another
    groups    entries of the table of groups; 0 without one
    rows      who brings rows of A (rows.py)
    weights   who brings rows of B (weights.py)
    epilogue_buffers  of D that a warp has in SMEM; none where D does not pass through it
    split_k   whether CTAs of a cluster have a half of K each
    places_rows  whether rows begin elsewhere in A than in D
    trace_warps  warps that leave stamps
    """

    tile: TileShape
    num_stages: int
    cluster: int
    fetchers: int
    groups: int
    rows: RowSource
    weights: WeightSource
    epilogue_buffers: int
    split_k: bool
    places_rows: bool
    trace_warps: int

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order (barriers.py)."""
        ring = barrier_table(
            num_stages=self.num_stages,
            loaders=self.rows.warps + 1 + self.weights.decode_warps,
            loaded=self.rows.arrivals + self.weights.arrivals,
            math_warps=WARPS_PER_GROUP * self.tile.warpgroups,
            cluster=self.cluster,
            fetchers=self.fetchers,
            split_k=self.split_k,
        )
        return self.weights.barriers(ring, self.num_stages)

    @property
    def tables(self) -> tuple[Field, ...]:
        """Fields that say where rows of groups lie, and what those who bring and decode operands have."""
        table = Field("group_table", (self.groups, 2), U32, 8)
        sources = (Field("source_rows", (self.groups,), U32, 4),) if self.places_rows else ()
        return (table, *self.weights.tables, *sources, *trace_counts(self.trace_warps))

    @property
    def box_bytes(self) -> int:
        return 2 * self.tile.store_rows * self.tile.store_columns

    @property
    def finishing_groups(self) -> int:
        """Warpgroups of a CTA that store what they have of a tile."""
        return 1 if self.split_k else self.tile.warpgroups

    @property
    def vectors_sent(self) -> int:
        """Four sums each, that a thread sends to the other CTA."""
        return self.tile.sums // VECTOR

    @cached_property
    def region(self) -> Region:
        """The TMA ring, boxes of D, tables and mbarriers."""
        stages, tile = self.num_stages, self.tile
        boxes = (WARPS_PER_GROUP * self.finishing_groups, self.epilogue_buffers, self.box_bytes)
        return Region.stack(
            "smem",
            Field("weights", (stages, self.weights.num_bytes(tile.n)), U8, OPERAND_ALIGNMENT),
            Field("tokens", (stages, tile.m * ROW_BYTES), U8, OPERAND_ALIGNMENT),
            *self.weights.operands(tile.n, stages),
            *((Field("cd", boxes, U8, OPERAND_ALIGNMENT),) if self.epilogue_buffers else ()),
            *((Field("exchange", (self.vectors_sent, EXCHANGING_THREADS, VECTOR), F32, 128),) if self.split_k else ()),
            self.rows.scales(tile, stages),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *self.tables,
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.barriers),
        )

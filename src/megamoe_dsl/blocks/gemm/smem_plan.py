"""Shared memory of one CTA of the GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...hardware.operand_tile import OPERAND_ALIGNMENT, ROW_BYTES
from ...layouts.arith import align
from ...layouts.mbarrier import MBarrier
from ...layouts.region import F32, U8, U32, U64, Field, Region
from .barriers import EXCHANGING_THREADS, LOADERS, barrier_table
from .tile import WARPS_PER_GROUP, TileShape

WORK_TILES = 2  # tiles handed out to a CTA that not all of its roles have read
VECTOR = 4  # sums that a thread sends at a time
SCALE_STEP = 4  # rows: scales that TMA fetches begin at a multiple of 16 bytes


@dataclass(frozen=True)
class GemmSmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field.

    fetchers  CTAs of a cluster that may fetch operands for one another
    groups    entries of the table of groups; 0 without one
    boxes     of D that a warp has in SMEM; none where D does not pass through it
    any_row   whether a tile may begin at any row
    split_k   whether CTAs of a cluster have a half of K each
    """

    tile: TileShape
    num_stages: int
    cluster: int
    fetchers: int
    groups: int
    boxes: int
    any_row: bool
    split_k: bool

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order (barriers.py)."""
        return barrier_table(
            num_stages=self.num_stages,
            work_tiles=WORK_TILES,
            loaders=self.loaders,
            loaded=self.loaded,
            math_warps=WARPS_PER_GROUP * self.tile.warpgroups,
            cluster=self.cluster,
            fetchers=self.fetchers,
            split_k=self.split_k,
        )

    @property
    def loaders(self) -> int:
        return LOADERS

    @property
    def loaded(self) -> int:
        """Arrivals of theirs that say that a stage is full."""
        return LOADERS

    @property
    def tables(self) -> tuple[Field, ...]:
        """What says where rows of groups lie."""
        return (Field("group_table", (self.groups, 2), U32, 8),)

    @property
    def scale_rows(self) -> int:
        """Scales of A that a stage holds: those of the tile's rows, and of up to three before them or behind; 0 without scales."""
        return self.tile.m + (SCALE_STEP if self.any_row else 0) if self.tile.scaled else 0

    @property
    def token_scales(self) -> Field:
        return Field("sfa", (self.num_stages, align(4 * self.scale_rows, 128) // 4), F32, 128)

    @property
    def weight_bytes(self) -> int:
        return self.tile.n * ROW_BYTES

    @property
    def more_operands(self) -> tuple[Field, ...]:
        return ()

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
        boxes = (WARPS_PER_GROUP * self.finishing_groups, self.boxes, self.box_bytes)
        return Region.stack(
            "smem",
            Field("weights", (stages, self.weight_bytes), U8, OPERAND_ALIGNMENT),
            Field("tokens", (stages, tile.m * ROW_BYTES), U8, OPERAND_ALIGNMENT),
            *self.more_operands,
            *((Field("cd", boxes, U8, OPERAND_ALIGNMENT),) if self.boxes else ()),
            *((Field("exchange", (self.vectors_sent, EXCHANGING_THREADS, VECTOR), F32, 128),) if self.split_k else ()),
            self.token_scales,
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *self.tables,
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.barriers),
        )

"""Shared memory of one CTA of the GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...hardware.operand_tile import BLOCK_K
from ...layouts.arith import align
from ...layouts.mbarrier import MBarrier
from ...layouts.region import F32, U8, U32, U64, Field, Region
from .barriers import barrier_table
from .tile import WARPS_PER_GROUP, TileShape

OPERAND_ALIGNMENT = 1024  # of SW128 operands: eight rows of 128 bytes
WORK_TILES = 2  # tiles handed out to a CTA that not all of its roles have read
STORE_BUFFERS = 2  # boxes of D of a warp: one is filled while TMA reads the other


@dataclass(frozen=True)
class GemmSmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field.

    groups   entries of the table of groups; 0 without one
    staged   whether D passes through SMEM
    """

    tile: TileShape
    num_stages: int
    cluster: int
    groups: int
    staged: bool

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order (barriers.py)."""
        return barrier_table(
            num_stages=self.num_stages,
            work_tiles=WORK_TILES,
            math_warps=WARPS_PER_GROUP * self.tile.warpgroups,
            cluster=self.cluster,
        )

    @property
    def box_bytes(self) -> int:
        """Of a box of D in SMEM."""
        return 2 * self.tile.store_rows * self.tile.store_columns

    @cached_property
    def region(self) -> Region:
        """The TMA ring, boxes of D, tables and mbarriers."""
        stages, tile = self.num_stages, self.tile
        boxes = (WARPS_PER_GROUP * tile.warpgroups, STORE_BUFFERS, self.box_bytes)
        return Region.stack(
            "smem",
            Field("weights", (stages, tile.n * BLOCK_K), U8, OPERAND_ALIGNMENT),
            Field("tokens", (stages, tile.m * BLOCK_K), U8, OPERAND_ALIGNMENT),
            *((Field("cd", boxes, U8, OPERAND_ALIGNMENT),) if self.staged else ()),
            Field("sfa", (stages, align(4 * tile.m, 128) // 4), F32, 128),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            Field("group_table", (self.groups, 2), U32, 8),
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.barriers),
        )

"""Shared memory of one CTA of the SM100 GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....hardware.cta_pair import CLUSTER
from ....hardware.operand_tile import OPERAND_ALIGNMENT
from ....layouts.mbarrier import MBarrier
from ....layouts.region import U8, U32, U64, Field, Region
from ...sm100.pair_stage import PairStage
from ...sm100.result_tile import result_bytes
from ..smem_plan import WORK_TILES
from ..tile import WARPS_PER_GROUP
from .barriers import LOADERS, pair_barrier_table


@dataclass(frozen=True)
class PairGemmSmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field.

    groups               entries of the table of groups; 0 without one
    pass_rows            rows of D of a pass of the epilogue; 0 where D does not pass through SMEM
    epilogue_warpgroups  each has a tile of a pass
    accumulators         tiles that have tensor memory at a time
    """

    stage: PairStage
    num_stages: int
    groups: int
    pass_rows: int
    epilogue_warpgroups: int
    accumulators: int

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order (barriers.py)."""
        return pair_barrier_table(
            num_stages=self.num_stages,
            loaded=self.loaded,
            work_tiles=WORK_TILES,
            reading_warps=self.reading_warps,
            epilogue_warps=self.epilogue_warps,
            accumulators=self.accumulators,
            pairs=self.pairs,
        )

    @property
    def epilogue_warps(self) -> int:
        return WARPS_PER_GROUP * self.epilogue_warpgroups

    @property
    def loaded(self) -> int:
        """Arrivals that say that a stage is full: of both CTAs' loaders."""
        return CLUSTER * LOADERS

    @property
    def pairs(self) -> int:
        """CTA pairs of a cluster."""
        return 1

    @property
    def reading_warps(self) -> int:
        """Of the pair, which read work tiles: those that load or store, and the one that multiplies."""
        return CLUSTER * (LOADERS + self.epilogue_warps) + 1

    @property
    def tables(self) -> tuple[Field, ...]:
        """What says where rows of groups lie."""
        return (Field("group_table", (self.groups, 2), U32, 8),)

    @cached_property
    def region(self) -> Region:
        """The TMA ring, passes of D, tables, mbarriers, and the column that tensor memory begins at."""
        passes = Field("cd", (self.epilogue_warpgroups, result_bytes(self.pass_rows)), U8, OPERAND_ALIGNMENT)
        return Region.stack(
            "smem",
            *self.stage.operands(self.num_stages),
            *((passes,) if self.pass_rows else ()),
            *self.stage.scales(self.num_stages),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *self.tables,
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.barriers),
            Field("tmem_address", (1,), U32),
        )

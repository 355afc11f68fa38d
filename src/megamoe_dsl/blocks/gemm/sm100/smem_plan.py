"""Shared memory of one CTA of the SM100 GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....hardware.cta_pair import CLUSTER
from ....hardware.operand_tile import OPERAND_ALIGNMENT
from ....layouts.mbarrier import MBarrier
from ....layouts.region import U8, U32, U64, Field, Region
from ...sm100.pair_stage import PairStage
from ...sm100.result_tile import PASS_ROWS, result_bytes
from ..barriers import WORK_TILES
from ..tile import WARPS_PER_GROUP
from ..trace_counts import trace_counts
from .barriers import LOADERS, pair_barrier_table
from .finish import ScatterPasses, StorePasses
from .rows import BroughtRows, PairRows


@dataclass(frozen=True)
class PairGemmSmemPlan:
    """Byte plan of a CTA's SMEM; `region` has every field.

    groups               entries of the table of groups; 0 without one
    epilogue_warpgroups  each has a tile of a pass
    accumulators         tiles that have tensor memory at a time
    rows                 who brings rows of A (rows.py)
    pairs                CTA pairs of a cluster
    epilogue             what becomes of sums (finish.py)
    places_rows          whether rows begin elsewhere in A than in D
    trace_warps          warps that leave stamps
    """

    stage: PairStage
    num_stages: int
    groups: int
    epilogue_warpgroups: int
    accumulators: int
    rows: PairRows | BroughtRows
    pairs: int
    epilogue: StorePasses | ScatterPasses
    places_rows: bool
    trace_warps: int

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order (barriers.py)."""
        of_pair = CLUSTER * (LOADERS + self.epilogue_warps) + 1 + self.rows.readers
        ring = pair_barrier_table(
            num_stages=self.num_stages,
            loaded=CLUSTER * LOADERS + self.rows.arrivals,
            work_tiles=WORK_TILES,
            reading_warps=self.pairs * of_pair,
            epilogue_warps=self.epilogue_warps,
            accumulators=self.accumulators,
            pairs=self.pairs,
        )
        return (*ring, *self.rows.barriers(self.num_stages))

    @property
    def epilogue_warps(self) -> int:
        return WARPS_PER_GROUP * self.epilogue_warpgroups

    @property
    def tables(self) -> tuple[Field, ...]:
        """Fields that say where rows of groups lie, and which rows are a tile's; amax: maxima of rows that warps exchange."""
        maxima = Field("amax", (self.epilogue_warpgroups, WARPS_PER_GROUP, PASS_ROWS), U32, 16)
        sources = Field("source_rows", (self.groups,), U32, 4)
        return (
            Field("group_table", (self.groups, 2), U32, 8),
            *self.rows.sums(self.groups),
            *((maxima,) if self.epilogue.shares_maxima else ()),
            *((sources,) if self.places_rows else ()),
            *self.rows.listed(self.stage),
            *trace_counts(self.trace_warps),
        )

    @cached_property
    def region(self) -> Region:
        """The TMA ring, passes of D, tables, mbarriers, and the column that tensor memory begins at."""
        passes = Field("cd", (self.epilogue_warpgroups, result_bytes(PASS_ROWS)), U8, OPERAND_ALIGNMENT)
        return Region.stack(
            "smem",
            *self.stage.operands(self.num_stages),
            *((passes,) if self.epilogue.staged else ()),
            *self.stage.scales(self.num_stages),
            Field("work_tiles", (WORK_TILES, 4), U32, 16),
            *self.tables,
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.barriers),
            Field("tmem_address", (1,), U32),
        )

"""Shared memory of one CTA of the SM100 GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....hardware.cta_pair import CLUSTER
from ....hardware.operand_tile import OPERAND_ALIGNMENT
from ....layouts.region import U8, U32, U64, Field, MBarrier, Region
from ...sm100.result_tile import PASS_ROWS, result_bytes
from ..barriers import WORK_TILES
from ..smem_plan import BaseGemmPlan
from ..tile import WARPS_PER_GROUP

LOADERS = 2


@dataclass(frozen=True)
class PairGemmSmemPlan(BaseGemmPlan):
    """SM100's; `region` has every field."""

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        config, rows, stages, accumulators = self.config, self.config.rows, self.num_stages, self.config.tmem.accumulators
        loaded, finishing = CLUSTER * LOADERS + rows.arrivals, CLUSTER * config.epilogue_warps
        readers = 32 * config.pairs * (CLUSTER * (LOADERS + config.epilogue_warps) + 1 + rows.readers)
        emptied, reading = "tcgen05.commit of each pair, multicast to the cluster", "loaders, MMA warp, epilogue warps"
        return (
            MBarrier("full", stages, loaded, "both loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
            MBarrier("empty", stages, config.pairs, emptied, "", "both loaders"),
            MBarrier("acc_full", accumulators, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
            MBarrier("acc_empty", accumulators, finishing, "every epilogue warp of the pair", "", "MMA warp", True),
            MBarrier("work_tile_full", WORK_TILES, 1, "the cluster's scheduler warp", "the work tile", reading),
            MBarrier("work_tile_empty", WORK_TILES, readers, "every lane that reads the tile, in the cluster", "", "scheduler warp", True),
            *rows.barriers(stages),
        )

    @property
    def passes(self) -> tuple[Field, ...]:
        """Rows of D on their way: a tile of a pass for each warpgroup of the epilogue."""
        shape = (self.config.epilogue_warpgroups, result_bytes(PASS_ROWS))
        return (Field("cd", shape, U8, OPERAND_ALIGNMENT),) if self.config.epilogue.staged else ()

    @property
    def maxima(self) -> tuple[Field, ...]:
        """Maxima of rows that warps exchange."""
        shape = (self.config.epilogue_warpgroups, WARPS_PER_GROUP, PASS_ROWS)
        return (Field("amax", shape, U32, 16),) if self.config.epilogue.shares_maxima else ()

    @cached_property
    def region(self) -> Region:
        """The TMA ring, passes of D, tables, mbarriers, and the column that tensor memory begins at."""
        stage, rows = self.config.stage, self.config.rows
        return Region.stack(
            "smem",
            *stage.operands(self.num_stages),
            *self.passes,
            *stage.scales(self.num_stages),
            self.work_tiles,
            self.group_table,
            *rows.sums(self.config.table_entries),
            *self.maxima,
            *self.source_rows,
            *rows.listed(stage),
            *self.trace_counts,
            *(Field(f"{one.name}_barrier", (one.count,), U64) for one in self.barriers),
            Field("tmem_address", (1,), U32),
        )

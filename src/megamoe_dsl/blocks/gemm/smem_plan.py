"""Shared memory of one CTA of a GEMM, on SM90 and on SM100."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...hardware.cta_pair import CLUSTER
from ...hardware.operand_tile import OPERAND_ALIGNMENT, ROW_BYTES
from ...layouts.region import F32, U8, U32, Field, MBarrier, Region
from ..sm100.epilogue_tile import PASS_ROWS, PASS_WARPGROUPS, result_bytes
from .tile import EXCHANGING_THREADS, VECTOR, WARPS_PER_GROUP, WORK_TILES


@dataclass(frozen=True)
class BaseGemmPlan:
    """Byte plan of a CTA's SMEM for a configuration with so many stages."""

    config: Any
    num_stages: int

    @property
    def tables(self) -> tuple[Field, ...]:
        """Published tiles, and where rows of groups lie."""
        return Field("work_tiles", (WORK_TILES, 4), U32, 16), Field("group_table", (self.config.table_entries, 2), U32, 8)

    @property
    def source_rows(self) -> tuple[Field, ...]:
        """Where rows of groups begin in A, where that is elsewhere than in D."""
        return (Field("source_rows", (self.config.table_entries,), U32, 4),) if self.config.problem.places_rows else ()

    @property
    def last(self) -> tuple[Field, ...]:
        counts = Field("trace_count", (self.config.num_threads // 32,), U32)
        return (*((counts,) if self.config.trace else ()), *(one.field for one in self.barriers))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class GemmSmemPlan(BaseGemmPlan):
    """SM90's; `region` has every field."""

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        config, rows, weights, stages = self.config, self.config.rows, self.config.weights, self.num_stages
        loaded, releases = rows.arrivals + weights.arrivals, config.math_warps * config.fetchers
        readers = 32 * (rows.warps + 1 + weights.decode_warps + config.math_warps) * config.cluster
        from_others, free = "operands and scales of A, from any CTA", "every lane of who reads work tiles in the cluster"
        ring = (
            MBarrier("full", stages, loaded, "token loader and weight loader", from_others, "math warps"),
            MBarrier("empty", stages, releases, "every math warp that reads it, of the cluster", "", "both loaders"),
            MBarrier("work_tile_full", WORK_TILES, 1, "the cluster's first scheduler warp", "the work tile", "loaders, math warps"),
            MBarrier("work_tile_empty", WORK_TILES, readers, free, "", "scheduler warp", config.cluster > 1),
        )
        exchange = (
            MBarrier("exchange_full", 1, 1, "a thread of the finishing warpgroup", "the other CTA's sums", "finishing warpgroup"),
            MBarrier("exchange_empty", 1, EXCHANGING_THREADS, "the other CTA's finishing warpgroup", "", "sending warpgroup", True),
        )
        return tuple(weights.barriers((*ring, *(exchange if config.split_k else ())), stages))

    @property
    def vectors_sent(self) -> int:
        """Four sums each, that a thread sends to the other CTA."""
        return int(self.config.tile.sums) // VECTOR

    @cached_property
    def region(self) -> Region:
        """The TMA ring, boxes of D, tables and mbarriers.  cd: boxes of each warp that stores them.  exchange: the other CTA's sums."""
        config, stages = self.config, self.num_stages
        tile, rows, weights, buffers = config.tile, config.rows, config.weights, config.epilogue.buffers
        warps, box_bytes = WARPS_PER_GROUP if config.split_k else config.math_warps, 2 * tile.store_rows * tile.store_columns
        boxes = Field("cd", (warps, buffers, box_bytes), U8, OPERAND_ALIGNMENT)
        exchange = Field("exchange", (self.vectors_sent, EXCHANGING_THREADS, VECTOR), F32, 128)
        return Region.stack(
            "smem",
            Field("weights", (stages, weights.num_bytes(tile.n)), U8, OPERAND_ALIGNMENT),
            Field("tokens", (stages, tile.m * ROW_BYTES), U8, OPERAND_ALIGNMENT),
            *weights.operands(tile.n, stages),
            *((boxes,) if buffers else ()),
            *((exchange,) if config.split_k else ()),
            rows.scales(tile, stages),
            *self.tables,
            *weights.tables,
            *self.source_rows,
            *self.last,
        )


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

    @cached_property
    def region(self) -> Region:
        """The TMA ring, tables, mbarriers, and the column that tensor memory begins at.  cd: a tile of a pass of D for each warpgroup of
        the epilogue.  amax: maxima of rows that warps exchange."""
        stage, rows, epilogue = self.config.stage, self.config.rows, self.config.epilogue
        passes = Field("cd", (PASS_WARPGROUPS, result_bytes(PASS_ROWS)), U8, OPERAND_ALIGNMENT)
        maxima = Field("amax", (PASS_WARPGROUPS, WARPS_PER_GROUP, PASS_ROWS), U32, 16)
        return Region.stack(
            "smem",
            *stage.operands(self.num_stages),
            *((passes,) if epilogue.staged else ()),
            *stage.scales(self.num_stages),
            *self.tables,
            *rows.sums(self.config.table_entries),
            *((maxima,) if epilogue.shares_maxima else ()),
            *self.source_rows,
            *rows.listed(stage),
            *self.last,
            Field("tmem_address", (1,), U32),
        )

"""Shared memory of one CTA of a GEMM on SM90 and on SM100, as a function of the number of stages."""

from __future__ import annotations

from typing import Any

from ...hardware.cta_pair import CLUSTER
from ...hardware.operand_tile import OPERAND_ALIGNMENT, ROW_BYTES
from ...layouts.region import F32, U8, U32, Field, MBarrier, Region, SharedPlan
from ..sm100.epilogue_tile import PASS_ROWS, PASS_WARPGROUPS, result_bytes
from .tile import EXCHANGING_THREADS, VECTOR, WARPS_PER_GROUP, WORK_TILES

Fields = tuple[Field, ...]


def plan_of(config: Any, barriers: tuple[MBarrier, ...], ring: Fields, tables: Fields, lists: Fields = (), end: Fields = ()) -> SharedPlan:
    """The plan, in this order: `ring` (operands and staged results), published work tiles, the table of groups and further `tables`, first
    rows of groups in A if they differ from those in D, further `lists`, stamp counters, mbarriers, `end`."""
    published, groups = Field("work_tiles", (WORK_TILES, 4), U32, 16), Field("group_table", (config.table_entries, 2), U32, 8)
    sources = (Field("source_rows", (config.table_entries,), U32, 4),) if config.problem.places_rows else ()
    counts = (Field("trace_count", (config.num_threads // 32,), U32),) if config.trace else ()
    fields = *ring, published, groups, *tables, *sources, *lists, *counts, *(one.field for one in barriers), *end
    return SharedPlan(Region.stack("smem", *fields), barriers)


def gemm_barriers(config: Any, stages: int) -> tuple[MBarrier, ...]:
    """All mbarriers of SM90's, in SMEM order."""
    rows, weights = config.rows, config.weights
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


def gemm_plan(config: Any, num_stages: int) -> SharedPlan:
    """The plan on SM90.  cd: staging boxes of D of each warp.  exchange: sums that the other CTA's threads send, four at a time."""
    tile, weights, buffers = config.tile, config.weights, config.epilogue.buffers
    warps = WARPS_PER_GROUP if config.split_k else config.math_warps
    boxes = Field("cd", (warps, buffers, config.epilogue.box_bytes(tile)), U8, OPERAND_ALIGNMENT)
    exchange = Field("exchange", (tile.sums // VECTOR, EXCHANGING_THREADS, VECTOR), F32, 128)
    ring = (
        Field("weights", (num_stages, weights.num_bytes(tile.n)), U8, OPERAND_ALIGNMENT),
        Field("tokens", (num_stages, tile.m * ROW_BYTES), U8, OPERAND_ALIGNMENT),
        *weights.operands(tile.n, num_stages),
        *((boxes,) if buffers else ()),
        *((exchange,) if config.split_k else ()),
        config.rows.scales(tile, num_stages),
    )
    return plan_of(config, gemm_barriers(config, num_stages), ring, weights.tables)


LOADERS = 2


def pair_gemm_barriers(config: Any, stages: int) -> tuple[MBarrier, ...]:
    """All mbarriers of SM100's, in SMEM order."""
    rows, accumulators = config.rows, config.tmem.accumulators
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


def pair_gemm_plan(config: Any, num_stages: int) -> SharedPlan:
    """The plan on SM100.  cd: staging tile of a pass of D of each epilogue warpgroup.  amax: row maxima that warps exchange.  tmem_address:
    first allocated column of tensor memory."""
    stage, rows, epilogue = config.stage, config.rows, config.epilogue
    passes = Field("cd", (PASS_WARPGROUPS, result_bytes(PASS_ROWS)), U8, OPERAND_ALIGNMENT)
    maxima = Field("amax", (PASS_WARPGROUPS, WARPS_PER_GROUP, PASS_ROWS), U32, 16)
    ring = *stage.operands(num_stages), *((passes,) if epilogue.staged else ()), *stage.scales(num_stages)
    tables = *rows.sums(config.table_entries), *((maxima,) if epilogue.shares_maxima else ())
    end = (Field("tmem_address", (1,), U32),)
    return plan_of(config, pair_gemm_barriers(config, num_stages), ring, tables, tuple(rows.listed(stage)), end)

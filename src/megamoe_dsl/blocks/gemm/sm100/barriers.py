"""The barrier table of the SM100 GEMM kernel: one row per set of mbarriers (layouts/mbarrier.py)."""

from __future__ import annotations

from ....hardware.cta_pair import CLUSTER
from ....layouts.mbarrier import MBarrier

LOADERS = 2


def pair_barrier_table(
    *, num_stages: int, loaded: int, work_tiles: int, reading_warps: int, epilogue_warps: int, accumulators: int, pairs: int
) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA, in SMEM order; a stage is full after `loaded` arrivals, work tiles are for `reading_warps` of the cluster, of
    so many pairs."""
    readers = 32 * reading_warps
    return (
        MBarrier("full", num_stages, loaded, "both loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
        MBarrier("empty", num_stages, pairs, "tcgen05.commit of each pair, multicast to the cluster", "", "both loaders"),
        MBarrier("acc_full", accumulators, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
        MBarrier("acc_empty", accumulators, CLUSTER * epilogue_warps, "every epilogue warp of the pair", "", "MMA warp", True),
        MBarrier("work_tile_full", work_tiles, 1, "the cluster's scheduler warp", "the work tile", "loaders, MMA warp, epilogue warps"),
        MBarrier("work_tile_empty", work_tiles, readers, "every lane that reads the tile, in the cluster", "", "scheduler warp", True),
    )

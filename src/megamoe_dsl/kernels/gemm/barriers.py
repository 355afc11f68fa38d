"""The barrier table of the GEMM kernel: one row per set of mbarriers (layouts/mbarrier.py)."""

from __future__ import annotations

from ...layouts.mbarrier import MBarrier

LOADERS = 2


def barrier_table(*, num_stages: int, work_tiles: int, math_warps: int, cluster: int) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA, in SMEM order."""
    readers = 32 * (LOADERS + math_warps) * cluster
    return (
        MBarrier("full", num_stages, LOADERS, "token loader and weight loader", "operands and scales of A, from any CTA", "math warps"),
        MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "both loaders"),
        MBarrier("work_tile_full", work_tiles, 1, "the cluster's first scheduler warp", "the work tile", "loaders, math warps"),
        MBarrier(
            "work_tile_empty", work_tiles, readers, "every lane of who reads work tiles in the cluster", "", "scheduler warp", cluster > 1
        ),
    )

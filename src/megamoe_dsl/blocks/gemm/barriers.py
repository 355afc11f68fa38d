"""The barrier table of the GEMM kernel: one row per set of mbarriers (layouts/mbarrier.py)."""

from __future__ import annotations

from ...layouts.mbarrier import MBarrier

WORK_TILES = 2  # tiles handed out to a CTA that not all of its roles have read
VECTOR = 4  # sums that a thread sends at a time
EXCHANGING_THREADS = 128  # of the warpgroup of a CTA that finishes what both CTAs have summed


def barrier_table(
    *, num_stages: int, loaders: int, loaded: int, math_warps: int, cluster: int, fetchers: int, split_k: bool
) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA, in SMEM order; a stage is full when `loaders` warps have arrived `loaded` times together."""
    readers = 32 * (loaders + math_warps) * cluster
    return (
        MBarrier("full", num_stages, loaded, "token loader and weight loader", "operands and scales of A, from any CTA", "math warps"),
        MBarrier("empty", num_stages, math_warps * fetchers, "every math warp that reads it, of the cluster", "", "both loaders"),
        MBarrier("work_tile_full", WORK_TILES, 1, "the cluster's first scheduler warp", "the work tile", "loaders, math warps"),
        MBarrier(
            "work_tile_empty", WORK_TILES, readers, "every lane of who reads work tiles in the cluster", "", "scheduler warp", cluster > 1
        ),
        *(exchange_barriers() if split_k else ()),
    )


def exchange_barriers() -> tuple[MBarrier, ...]:
    """A cluster whose CTAs have half of K each exchanges sums with these mbarriers: one for their arrival, one for their space."""
    return (
        MBarrier("exchange_full", 1, 1, "a thread of the finishing warpgroup", "the other CTA's sums", "finishing warpgroup"),
        MBarrier("exchange_empty", 1, EXCHANGING_THREADS, "the other CTA's finishing warpgroup", "", "sending warpgroup", True),
    )

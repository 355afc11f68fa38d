"""The barrier table of the SM90 mega kernel: one row per set of mbarriers (layouts/mbarrier.py)."""

from __future__ import annotations

from ....layouts.mbarrier import MBarrier


def sm90_barrier_table(
    *,
    num_stages: int,
    work_tiles: int,
    dispatch_warps: int,
    pull_slots: int,
    math_warps: int,
    cluster: int,
    tile_readers: int,
    decode_warps: int,
) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA on SM90, in SMEM order; `tile_readers` counts the warps that read work tiles."""
    # The first CTA's warp that deals tiles stores its tiles, too, where warps decode; that of another CTA reads them as all others do.
    readers = 32 * (tile_readers * cluster + (cluster - 1 if decode_warps else 0))
    operands = "operands and token scales, from either CTA"
    ring: tuple[MBarrier, ...]
    if decode_warps:
        ring = (
            MBarrier("full", num_stages, 1 + decode_warps, "token loader and every decode warp", operands, "math warps"),
            MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "token loader and decode warps"),
            MBarrier("codes_full", num_stages, 1, "weight loader", "a packed tile", "decode warps"),
            MBarrier("codes_empty", num_stages, decode_warps, "every decode warp", "", "weight loader"),
        )
    else:
        ring = (
            MBarrier("full", num_stages, 2, "token loader and weight loader", operands, "math warps"),
            MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "both loaders"),
        )
    return (
        *ring,
        MBarrier("store_full", 1, math_warps, "every math warp, per Linear1 tile", "", "store warp"),
        MBarrier("store_empty", 1, 1, "store warp, when the tile has been read", "", "math warps"),
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and math warps, once"),
        MBarrier("work_tile_full", work_tiles, 1, "the cluster's first scheduler warp", "the work tile", "all that work on tiles"),
        MBarrier(
            "work_tile_empty", work_tiles, readers, "every lane that reads work tiles, in the cluster", "", "scheduler warp", cluster > 1
        ),
        MBarrier("pull", dispatch_warps * pull_slots, 1, "the dispatch warp", "one chunk of a token row", "the dispatch warp"),
        MBarrier("combine", 2 * math_warps, 1, "the math warp", "one piece of a token's top-k results", "the math warp"),
    )

"""The barrier table of the SM100 mega kernel: one row per set of mbarriers.  Initialisation, SMEM size and checks come from the rows.

The names follow the article (4.2 to 4.5).  `arrivals` is what completes a phase besides transaction bytes.
"""

from __future__ import annotations

from ....blocks.sm100.tmem_plan import ACCUMULATORS
from ....hardware.cta_pair import CLUSTER
from ....layouts.mbarrier import MBarrier
from ..layouts.tile import WARPS_PER_GROUP


def barrier_table(*, num_stages: int, work_tiles: int, dispatch_warps: int, epilogue_warps: int) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA, in SMEM order."""
    readers = 32 * (CLUSTER * (2 + WARPS_PER_GROUP) + 1)
    return (
        MBarrier("full", num_stages, 4, "token and weight loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
        MBarrier("empty", num_stages, 1, "tcgen05.commit, multicast to the pair", "", "token and weight loaders"),
        MBarrier("acc_full", ACCUMULATORS, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
        MBarrier("acc_empty", ACCUMULATORS, 8, "the four warps of the epilogue warpgroup of both CTAs", "", "MMA warp", True),
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and epilogue warps, once"),
        MBarrier("work_tile_full", work_tiles, 1, "the pair's scheduler warp", "the work tile", "loaders, MMA warp, epilogue warps"),
        MBarrier("work_tile_empty", work_tiles, readers, "every lane that reads the tile, in the pair", "", "scheduler warp", True),
        MBarrier("pull", dispatch_warps, 1, "the dispatch warp", "one token row", "the dispatch warp"),
        MBarrier("combine", 2 * epilogue_warps, 1, "the epilogue warp", "one piece of a token's top-k results", "the epilogue warp"),
    )

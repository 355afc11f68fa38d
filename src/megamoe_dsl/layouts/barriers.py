"""The barrier table of the SM100 mega kernel: one row per set of mbarriers.  Initialisation, SMEM size and checks come from the rows.

The names follow the article (4.2 to 4.5).  `arrivals` is what completes a phase besides transaction bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

ACCUMULATORS = 2  # TMEM accumulator buffers


@dataclass(frozen=True)
class MBarrier:
    """`count` barriers with the same role in every CTA (`leader_only`: used in the even CTA of a pair, whose counts span both)."""

    name: str
    count: int
    arrivals: int
    who: str
    transaction: str
    waits: str
    leader_only: bool = False


def barrier_table(*, num_stages: int, dispatch_warps: int, epilogue_warps: int) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA, in SMEM order."""
    return (
        MBarrier("full", num_stages, 4, "token and weight loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
        MBarrier("empty", num_stages, 1, "tcgen05.commit, multicast to the pair", "", "token and weight loaders"),
        MBarrier("acc_full", ACCUMULATORS, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
        MBarrier("acc_empty", ACCUMULATORS, 8, "the four warps of the epilogue warpgroup of both CTAs", "", "MMA warp", True),
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "every role, once"),
        MBarrier("pull", dispatch_warps, 1, "the dispatch warp", "one token row", "the dispatch warp"),
        MBarrier("combine", 2 * epilogue_warps, 1, "the epilogue warp", "one piece of a token's top-k results", "the epilogue warp"),
    )


def sm90_barrier_table(
    *, num_stages: int, tickets: int, dispatch_warps: int, pull_slots: int, math_warps: int, cluster: int
) -> tuple[MBarrier, ...]:
    """All mbarriers of a CTA on SM90, in SMEM order."""
    readers = 32 * (3 + math_warps) * cluster
    return (
        MBarrier("full", num_stages, 2, "token loader and weight loader", "operands and token scales, from either CTA", "math warps"),
        MBarrier("empty", num_stages, math_warps * cluster, "every math warp of the cluster", "", "both loaders"),
        MBarrier("store_full", 1, math_warps, "every math warp, per L1 tile", "", "store warp"),
        MBarrier("store_empty", 1, 1, "store warp, when the tile has been read", "", "math warps"),
        MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and math warps, once"),
        MBarrier("ticket_full", tickets, 1, "the cluster's first scheduler warp", "the ticket", "loaders, store warp, math warps"),
        MBarrier("ticket_empty", tickets, readers, "every lane of who reads tickets in the cluster", "", "scheduler warp", cluster > 1),
        MBarrier("pull", dispatch_warps * pull_slots, 1, "the dispatch warp", "one chunk of a token row", "the dispatch warp"),
        MBarrier("combine", 2 * math_warps, 1, "the math warp", "one piece of a token's top-k results", "the math warp"),
    )


class NamedBarrier:
    """Hardware barriers of `barrier.cta`; 0 stays free for the whole CTA."""

    DISPATCH = 1  # 128 dispatch threads
    DISPATCH_EPILOGUE = 2  # dispatch has pulled all, epilogue has passed BEFORE_COMBINE
    EPILOGUE_ALL = 3
    EPILOGUE_GROUP = 4  # and 5: one per epilogue warpgroup

"""The barrier table of the SM100 kernel: that of a GEMM of pairs, and what the warps that gather wait for (layouts/region.py).

A stage goes from hand to hand: *copied* - scales of rows have arrived, thread by thread -, *full* - the odd CTA has announced its own
to the even one, whose MMA warp sees both -, *empty* - the tensor cores have finished.  Without scales it is full and empty alone.
"""

from __future__ import annotations

from .....layouts.region import MBarrier

GATHER_WARPS = 4
"""Warps that gather rows and their scales: TMA takes gather4 from one thread of a warp at a time."""
LISTS = 2
"""Lists of rows in shared memory: of the tile that is gathered, and of the next."""


def gather_barriers(num_stages: int, gathers: bool, copies: bool) -> tuple[MBarrier, ...]:
    """Those that a GEMM of pairs does not have; without lists where rows are sorted, or where threads copy no scales."""
    copied = MBarrier(
        "copied", num_stages, 32 * GATHER_WARPS, "every thread that gathers, once it has copied", "", "MMA warp, announcing warp"
    )
    lists = (
        MBarrier("list_full", LISTS, 32, "every lane of the index warp, once it has copied", "", "warps that gather"),
        MBarrier("list_empty", LISTS, 32 * GATHER_WARPS, "every thread that gathers", "", "index warp"),
    )
    return (*((copied,) if copies else ()), *(lists if gathers else ()))

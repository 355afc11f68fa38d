"""What CTAs and ranks wait for in a launch of the fused layer or of a stage."""

from __future__ import annotations

from enum import IntEnum

from ....layouts.records import WatchedWaits

ONE_REPORT = 1 << 32
"""In the high word of an expert's sum of counts: one more rank has reported."""


class RankBarrier(IntEnum):
    """Barriers of one launch; each has counters of its own, so they may overlap.  BEFORE_COMBINE joins all CTAs of all ranks.  At
    BEFORE_PULL only SM 0 waits, for the CTAs of its rank, and when tokens are few it does not (dispatch.py); what tells the other
    ranks to pull are the counts that SM 0 sends after it."""

    BEFORE_PULL = 0
    BEFORE_COMBINE = 1


class Wait(IntEnum):
    """Waits that have a watchdog; everything else in the kernel waits, directly or not, for one of them."""

    COUNTS = 1  # scheduler warp: token counts of a local expert from every rank
    FC1_ARRIVAL = 2  # token loader and epilogue: tokens of a pool block
    FC2_ARRIVAL = 3  # token loader: Linear1 output of a pool block
    GRID = 4  # SM 0: all CTAs at a rank barrier
    RANK = 5  # all CTAs: every rank at a rank barrier
    ROWS = 6  # dispatch, of a pool that is a ring: Linear2 of the block whose rows a token takes


WAITS = WatchedWaits(
    {
        Wait.COUNTS: ("local expert", "dispatch"),
        Wait.FC1_ARRIVAL: ("pool block", "Linear1"),
        Wait.FC2_ARRIVAL: ("pool block", "Linear2"),
        Wait.GRID: ("rank barrier", None),
        Wait.RANK: ("rank barrier", None),
        Wait.ROWS: ("pool block", "dispatch"),
    },
    {RankBarrier.BEFORE_PULL: "dispatch", RankBarrier.BEFORE_COMBINE: "combine"},
    "dispatch or combine",
    Wait.COUNTS,
)

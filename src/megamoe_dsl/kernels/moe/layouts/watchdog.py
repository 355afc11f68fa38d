"""The waits of the mega kernels that have a watchdog, and the message that a record of one becomes (layouts/records.py)."""

from __future__ import annotations

from enum import IntEnum

from .symmetric import RankBarrier


class Wait(IntEnum):
    """Waits that have a watchdog; everything else in the kernel waits, directly or not, for one of them."""

    COUNTS = 1  # scheduler warp: token counts of a local expert from every rank
    FC1_ARRIVAL = 2  # token loader and epilogue: tokens of a pool block
    FC2_ARRIVAL = 3  # token loader: Linear1 output of a pool block
    GRID = 4  # SM 0: all CTAs at a rank barrier
    RANK = 5  # all CTAs: every rank at a rank barrier
    ROWS = 6  # dispatch, of a pool that is a ring: Linear2 of the block whose rows a token takes


DETAIL = {
    Wait.COUNTS: "local expert",
    Wait.FC1_ARRIVAL: "pool block",
    Wait.FC2_ARRIVAL: "pool block",
    Wait.GRID: "rank barrier",
    Wait.RANK: "rank barrier",
    Wait.ROWS: "pool block",
}
PHASE = {Wait.COUNTS: "dispatch", Wait.FC1_ARRIVAL: "Linear1", Wait.FC2_ARRIVAL: "Linear2", Wait.ROWS: "dispatch"}
PHASE_OF_BARRIER = {RankBarrier.BEFORE_PULL: "dispatch", RankBarrier.BEFORE_COMBINE: "combine"}


def describe(words: list[int]) -> str | None:
    """Message for a record of eight words: rank, phase, and barrier, expert or block; None when no watchdog has fired."""
    wait, rank, sm, detail, *values = (w & 0xFFFFFFFF for w in words)
    if not wait:
        return None
    expected, observed = values[0] | values[1] << 32, values[2] | values[3] << 32
    name, what = Wait(wait), str(detail)
    if name in PHASE:
        phase = PHASE[name]
    elif detail in PHASE_OF_BARRIER:
        phase, what = PHASE_OF_BARRIER[RankBarrier(detail)], RankBarrier(detail).name
    else:  # two waits gave up at once and wrote one record: the detail is the other's
        phase = "dispatch or combine"
    seen = f"{observed >> 32:#x} ranks" if name == Wait.COUNTS else f"{observed:#x}"
    return f"rank {rank}, SM {sm}, {phase}: wait {name.name} ({DETAIL[name]} {what}) exceeded its limit: expected {expected:#x}, saw {seen}"

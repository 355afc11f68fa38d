"""The waits of the expert-parallel kernels that have a watchdog (layouts/records.py)."""

from __future__ import annotations

from enum import IntEnum

from .symmetric import EpBarrier


class EpWait(IntEnum):
    """Everything else waits, directly or not, for one of them."""

    ROWS = 1  # token loader: rows of a tile
    GRID = 2  # SM 0: all CTAs at a rank barrier
    RANK = 3  # every rank at a rank barrier
    STORED = 4  # tail warps: a row
    TILES = 5  # who sends results: tiles of a part of a block's rows


WHAT = {
    EpWait.ROWS: "rows of block or expert",
    EpWait.GRID: "rank barrier",
    EpWait.RANK: "rank barrier",
    EpWait.STORED: "row",
    EpWait.TILES: "tiles of part",
}


PHASE = {EpWait.ROWS: "dispatch", EpWait.STORED: "dispatch", EpWait.TILES: "combine"}
PHASE_OF_BARRIER = {
    EpBarrier.SPLITS: "routing tables",
    EpBarrier.INPUTS: "dispatch",
    EpBarrier.RESULTS: "combine",
    EpBarrier.READ: "end of dispatch or combine",
}


def describe(words: list[int]) -> str | None:
    """Message for a record of eight words: rank, phase, and barrier, block or row; None when no watchdog has fired."""
    wait, rank, sm, detail, *values = (w & 0xFFFFFFFF for w in words)
    if not wait:
        return None
    expected, observed = values[0] | values[1] << 32, values[2] | values[3] << 32
    name, what = EpWait(wait), str(detail)
    if name in PHASE:
        phase = PHASE[name]
    elif detail in PHASE_OF_BARRIER:
        phase, what = PHASE_OF_BARRIER[EpBarrier(detail)], EpBarrier(detail).name
    else:  # two waits gave up at once and wrote one record: the detail is the other's
        phase = "routing tables, dispatch or combine"
    wanted = f"expected {expected:#x}, saw {observed:#x}"
    return f"rank {rank}, SM {sm}, {phase}: wait {name.name} ({WHAT[name]} {what}) exceeded its limit: {wanted}"

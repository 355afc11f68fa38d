"""The waits of the expert-parallel kernels that have a watchdog (layouts/watchdog.py)."""

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


def describe(words: list[int]) -> str | None:
    """Message for a record of eight words; None when no watchdog has fired."""
    wait, rank, sm, detail, *values = (w & 0xFFFFFFFF for w in words)
    if not wait:
        return None
    expected, observed = values[0] | values[1] << 32, values[2] | values[3] << 32
    name = EpWait(wait)
    place = str(detail) if name not in (EpWait.GRID, EpWait.RANK) else EpBarrier(detail).name
    return f"rank {rank}, SM {sm}: wait {name.name} ({WHAT[name]} {place}) exceeded its limit: expected {expected:#x}, saw {observed:#x}"

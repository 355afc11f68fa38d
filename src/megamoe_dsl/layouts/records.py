"""Records that kernels leave for the host: stamps of what a warp was doing (device/stamps.py), and the wait that exceeded its limit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from .region import U32, U64, Field, Region

CAPACITY = 2048  # stamps of a warp

STAMP = Region.stack("stamp", Field("time", (1,), U64), Field("activity", (1,), U32), Field("detail", (1,), U32))
"""`time` in nanoseconds of %globaltimer; each kernel defines what `activity` and `detail` mean."""


def trace_buffer(num_sms: int, warps: int) -> Region:
    """Stamps of every warp of every CTA, in order, up to the first whose time is zero."""
    return Region.stack("trace", Field("stamps", (num_sms, warps, CAPACITY, STAMP.size // 8), U64, 16))


class Role(IntEnum):
    """Roles that write stamps; a warp's first stamp holds its role as detail."""

    DISPATCH = 0
    TOKEN_LOADER = 1
    WEIGHT_LOADER = 2
    MATH = 3
    MMA = 4
    EPILOGUE = 5
    COMBINE = 6


class Activity(IntEnum):
    """What a warp did between its previous stamp and this one."""

    START = 0  # the warp's first stamp
    COUNT = 1  # dispatch: counting tokens, sending their indices
    WAIT_RANKS = 2  # combine: for the tiles of every rank; in a half: until every rank has its inputs, or has read what it needs
    PULL = 3  # dispatch: tokens into the pool
    WAIT_RESULTS = 4  # dispatch: until combine has passed the rank barrier; combine: until dispatch has pulled all tokens
    CLEAN = 5  # dispatch: clearing the workspace for the next launch
    WAIT_COUNTS = 6  # all: the table of tokens per expert, made of every rank's counts
    WAIT_TOKENS = 7  # token loader: its next tile, its tokens or Linear1 outputs
    LOAD = 8  # loaders: a tile, waits for free stages included (weight loader: for the next tile too)
    WAIT_STAGE = 9  # math: its next tile, its first stage; MMA: its next tile, a free accumulator; epilogue: its next tile, its sums
    MULTIPLY = 10  # math, MMA: a tile's K blocks, waits for later stages included
    WAIT_STORE = 11  # math: the staging buffer; in a half: its last results are in memory
    EPILOGUE = 12  # math, epilogue: SwiGLU and scales, or the stores to other ranks
    COMBINE = 13  # combine: the sum of top-k results


TILE_ACTIVITIES = tuple(Activity)[Activity.WAIT_TOKENS : Activity.EPILOGUE + 1]  # those that belong to a tile


def tile_detail(block: Any, n_block: Any, phase: Any) -> Any:
    """Detail of a stamp that belongs to a tile: its row block in the pool, its block of weight rows, and of which linear it is."""
    return 2 * (block * 256 + n_block) + phase


RECORD = Region.stack(
    "watchdog",
    Field("wait", (1,), U32),
    Field("rank", (1,), U32),
    Field("sm", (1,), U32),
    Field("detail", (1,), U32),
    Field("expected", (2,), U32),
    Field("observed", (2,), U32),
)
"""`wait` says which wait it was; it is written last, and is not zero."""


class Watched(IntEnum):
    """A rank barrier, or a wait that has a watchdog: its number, where the launch is there, and what a wait's detail counts.  Where a wait
    at a rank barrier is, the barrier says."""

    phase: str
    counted: str

    def __new__(cls, number: int, phase: str, counted: str = "rank barrier") -> Self:
        one = int.__new__(cls, number)
        one._value_, one.phase, one.counted = number, phase, counted
        return one


@dataclass(frozen=True)
class WatchedWaits:
    """Waits of a family of kernels, and the messages that their records become.

    anywhere  where the launch was, of a record that two waits wrote at once
    of_ranks  the wait whose counter has reports of ranks in its high word
    """

    waits: type[Watched]
    barriers: type[Watched]
    anywhere: str
    of_ranks: IntEnum | None = None

    def describe(self, words: list[int]) -> str | None:
        """Message for a record of eight words: rank, phase, and barrier, expert, row or block; None when no watchdog has fired."""
        wait, rank, sm, detail, *values = (w & 0xFFFFFFFF for w in words)
        if not wait:
            return None
        expected, observed = values[0] | values[1] << 32, values[2] | values[3] << 32
        [name] = [one for one in self.waits if one == wait]
        phase, what = name.phase, str(detail)
        for barrier in (one for one in self.barriers if not phase and one == detail):
            phase, what = barrier.phase, barrier.name
        seen = f"{observed >> 32:#x} ranks" if name == self.of_ranks else f"{observed:#x}"
        waited = f"wait {name.name} ({name.counted} {what}) exceeded its limit: expected {expected:#x}, saw {seen}"
        return f"rank {rank}, SM {sm}, {phase or self.anywhere}: {waited}"

"""The waits of the mega kernels that have a watchdog, and the message that a record of one becomes (layouts/records.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from .symmetric import RankBarrier


@dataclass(frozen=True)
class WatchedWaits:
    """Waits of a family of kernels, and the messages that their records become.

    detail, barrier  of each wait what its detail counts; what it is an index of at a rank barrier
    phase, phases    of a wait, and of a rank barrier, where the launch was; `anywhere`, of a record that two waits wrote at once
    of_ranks         the wait whose counter has reports of ranks in its high word
    """

    detail: Mapping[IntEnum, str]
    phase: Mapping[IntEnum, str]
    barrier: type[IntEnum]
    phases: Mapping[IntEnum, str]
    anywhere: str
    of_ranks: IntEnum | None = None

    def describe(self, words: list[int]) -> str | None:
        """Message for a record of eight words: rank, phase, and barrier, expert, row or block; None when no watchdog has fired."""
        wait, rank, sm, detail, *values = (w & 0xFFFFFFFF for w in words)
        if not wait:
            return None
        expected, observed = values[0] | values[1] << 32, values[2] | values[3] << 32
        [name] = [one for one in self.detail if one == wait]
        phase, what = self.phase.get(name), str(detail)
        if phase is None and detail in self.phases:
            phase, what = self.phases[self.barrier(detail)], self.barrier(detail).name
        seen = f"{observed >> 32:#x} ranks" if name == self.of_ranks else f"{observed:#x}"
        waited = f"wait {name.name} ({self.detail[name]} {what}) exceeded its limit: expected {expected:#x}, saw {seen}"
        return f"rank {rank}, SM {sm}, {phase or self.anywhere}: {waited}"


class Wait(IntEnum):
    """Waits that have a watchdog; everything else in the kernel waits, directly or not, for one of them."""

    COUNTS = 1  # scheduler warp: token counts of a local expert from every rank
    FC1_ARRIVAL = 2  # token loader and epilogue: tokens of a pool block
    FC2_ARRIVAL = 3  # token loader: Linear1 output of a pool block
    GRID = 4  # SM 0: all CTAs at a rank barrier
    RANK = 5  # all CTAs: every rank at a rank barrier
    ROWS = 6  # dispatch, of a pool that is a ring: Linear2 of the block whose rows a token takes


WAITS = WatchedWaits(
    detail={
        Wait.COUNTS: "local expert",
        Wait.FC1_ARRIVAL: "pool block",
        Wait.FC2_ARRIVAL: "pool block",
        Wait.GRID: "rank barrier",
        Wait.RANK: "rank barrier",
        Wait.ROWS: "pool block",
    },
    phase={Wait.COUNTS: "dispatch", Wait.FC1_ARRIVAL: "Linear1", Wait.FC2_ARRIVAL: "Linear2", Wait.ROWS: "dispatch"},
    barrier=RankBarrier,
    phases={RankBarrier.BEFORE_PULL: "dispatch", RankBarrier.BEFORE_COMBINE: "combine"},
    anywhere="dispatch or combine",
    of_ranks=Wait.COUNTS,
)

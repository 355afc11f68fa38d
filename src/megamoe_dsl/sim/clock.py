"""Vector clocks of the race detector, agents and lanes that they count, and what lanes tell.

One clock per strand of a warp and per synchronization object (rows: `access_record`); copies share the entries of the original until one
changes. A warp is one agent while its lanes act together: its entry is what all of them have done, and an entry of some lanes, which exists
once they have acted without the others, is what these have done beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .access_record import AGENT_MASK, FULL, HAPPENED, QUICK, READS, ROWS, lane_codes, lanes_of, members, pack
from .errors import SimError
from .geometry import Geometry


class Clock:
    """A vector clock; it widens as agents appear. Read `rows`; call `own` before writing to them."""

    __slots__ = ("_shared", "rows")

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self.rows = rows
        self._shared = False

    def own(self) -> NDArray[np.int32]:
        """The entries, copied first if another clock shares them."""
        if self._shared:
            self.rows, self._shared = self.rows.copy(), False
        return self.rows

    def fit(self, width: int) -> None:
        have = self.rows.shape[1]
        if have < width:
            rows = np.zeros((ROWS, width), np.int32)
            rows[:, :have] = self.rows
            self.rows, self._shared = rows, False

    def _fit_each(self, other: Clock) -> None:
        if self.rows.shape != other.rows.shape:
            self.fit(other.rows.shape[1])
            other.fit(self.rows.shape[1])

    def join(self, other: Clock) -> None:
        """Everything `other` knows is now known here too."""
        if other.rows is self.rows:
            return
        self._fit_each(other)
        if self._shared:
            self.rows, self._shared = np.maximum(self.rows, other.rows), False
        else:
            np.maximum(self.rows, other.rows, out=self.rows)

    def copy(self) -> Clock:
        out = Clock(self.rows)
        out._shared = self._shared = True
        return out

    def raise_to(self, rows: Sequence[int], known: list[tuple[NDArray[np.int64], int]]) -> None:
        """Raise the entries of agents in these rows to at least a time; `known` lists (agents, time)."""
        QUICK.raise_to(self.own(), rows, known)

    def at(self, agent: int) -> int:
        return self.rows.item(HAPPENED, agent)

    def set(self, agent: int, value: int) -> None:
        """Let the clock know `agent` up to `value`, in every row (the agent is an engine of the async proxy itself)."""
        self.own()[:, agent] = value

    def knows(self, other: Clock) -> bool:
        self._fit_each(other)
        return not bool((other.rows[HAPPENED] > self.rows[HAPPENED]).any())

    def publish_to_async(self, shown_to: Iterable[int]) -> None:
        rows = self.own()
        for row in shown_to:
            np.maximum(rows[row], rows[HAPPENED], out=rows[row])


@dataclass(slots=True)
class Actor:
    """An engine as accessor. `asynchronous` means the async proxy; `code` is the lanes that it works for, if it tells them apart."""

    agent: int
    clock: Clock
    line: int
    asynchronous: bool = True
    code: int = 0
    record: int = -1

    def stamp(self) -> int:
        """The record of its accesses, whose time is the clock's at the first of them."""
        if self.record < 0:
            self.record = pack(self.agent, self.clock.at(self.agent), self.line, self.asynchronous, self.code)
        return self.record


MAX_AGENTS = (AGENT_MASK + 1) // 2  # Warps and engines; as many numbers are left for lanes that act alone.


def agents_needed(launches: Iterable[Geometry]) -> int:
    """The least number of agents that a run of these launches with the race detector needs: one for every warp. Engines come on top of it
    when they are first used (the TMA loads of an mbarrier, both sides of a warp's bulk stores, tensor pipes)."""
    return sum(launch.ctas * launch.warps for launch in launches)


def check_agents(needed: int, so_far: bool = True, lanes: int = 0) -> None:
    if needed > MAX_AGENTS or needed + lanes > AGENT_MASK + 1:
        what = "so far" if so_far else "for the warps alone"
        remedy = "run fewer or smaller CTAs, ranks or launches at a time, or turn the detector off (race=False)"
        what += f" and {lanes} lanes" if lanes else ""
        raise SimError(f"race detector: {needed} agents {what}, the limit is {MAX_AGENTS}: {remedy}")


Entries = NDArray[np.int64]
_MOST = 8  # Masks of several lanes that get an entry; of lanes in others, each has one.


class LaneAgents:
    """An agent for all lanes of a warp, with its clock entry, and the entries of masks of lanes that have acted alone (`groups`)."""

    def __init__(self, race: Any, name: str, place: Any) -> None:
        self.race, self.name, self.place = race, name, place
        self.agent: int = race.agent(name, place)
        race.lanes[self.agent] = self
        self.groups: dict[int, int] = {}
        self.last = 0  # when a lane last did something that it must answer for
        self.present = FULL  # lanes that there are
        self._inside: dict[int, Entries] = {}
        self._asked: set[int] = set()

    def entry(self, bits: int) -> int:
        """The entry of these lanes, made when they first act."""
        if (entry := self.groups.get(bits)) is None:
            lanes = f"lanes {bits:#x}" if bits & (bits - 1) else f"lane {bits.bit_length() - 1}"
            self.race.single += 1
            entry = self.groups[bits] = self.race.agent(f"{self.name} {lanes}", self.place)
            self.race.warps[entry] = self.race.warps[self.agent]
            self._inside.clear()
        return entry

    def of(self, bits: int) -> Entries:
        """The entries that say what lanes `bits` have done."""
        if bits != FULL and bits not in self._asked:
            self._asked.add(bits)
            several = sum(1 for mask in self.groups if mask & (mask - 1))
            for part in [bits] if not bits & (bits - 1) or several < _MOST else [1 << lane for lane in lanes_of(bits)]:
                self.entry(part)
        return self.having(bits)

    def having(self, bits: int) -> Entries:
        """The entries that there are of lanes `bits`, and of no others."""
        if (entries := self._inside.get(bits)) is None:
            own = [self.agent] if bits == FULL else []
            inside = [entry for mask, entry in self.groups.items() if not mask & ~bits]
            entries = self._inside[bits] = np.array(own + inside, np.int64)
        return entries

    def known(self, row: NDArray[np.int32], code: int, until: int) -> bool:
        """Whether a clock row covers what lanes `code` had done by time `until`. If it covers all lanes, the agent's entry is raised."""
        if row.item(self.agent) >= until:
            return True
        covered, least = 0, 1 << 31
        for mask, entry in self.groups.items():
            if (when := row.item(entry)) >= until:
                covered, least = covered | mask, min(least, when)
        if not self.present & ~covered:
            row[self.agent] = least
        return not members(code) & self.present & ~covered


@dataclass(slots=True, eq=False)
class Strand:
    """Lanes (mask `bits`) of a warp that share one clock."""

    bits: int
    clock: Clock

    def has(self, records: NDArray[np.int64] | int) -> NDArray[np.bool_] | np.bool_:
        inside = np.array([members(code) & ~self.bits == 0 for code in range(64)])
        return inside[lane_codes(np.asarray(records))]


class Said(NamedTuple):
    """What lanes can tell about their warp at one moment.  `done` has for each agent the time up to which lanes acted, and whether single
    lanes need entries of their own; `read` has the time up to which all lanes have read."""

    done: tuple[tuple[LaneAgents, int, bool], ...]
    read: tuple[tuple[LaneAgents, int], ...]

    def write(self, clock: Clock, bits: int, race: Any) -> Clock:
        entries = [(agents.of(bits) if needed or bits == FULL else agents.having(bits), when) for agents, when, needed in self.done]
        clock.fit(race.width)
        clock.raise_to((READS,), [(agents.having(FULL), when) for agents, when in self.read])
        clock.raise_to((HAPPENED, READS), entries)
        return clock

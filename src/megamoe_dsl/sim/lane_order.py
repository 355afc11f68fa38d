"""The lanes of a warp as agents of the race detector.

A warp has one clock as long as its lanes learn everything together. Lanes that learn something on their own become a strand with a clock
of its own, until a barrier brings them together. What the warp itself does is recorded with its lanes (`access_record`) and at its own
time; a clock's entry for the warp counts what *all* lanes have done, which a lane knows of the others from barriers only.

What orders lanes of a warp (PTX ISA, "bar.warp.sync", "Memory Consistency Model"):

- `bar.warp.sync`: memory accesses of the lanes it names, before and after. It is no operation that "synchronizes" in the memory model, so
  what it promises ends with those lanes. What one of them then releases covers what the others wrote, which it might have read, and what
  they read and used; a load whose value nothing has used may still be under way (`loads_in_flight`), and only its own lane's
  release, or `barrier.cta`, is after it.
- `barrier.cta`, mbarriers, flags: as between any threads.
- `shfl.sync`, `vote.sync`, `elect.sync` and the like: no memory. But they wait for lanes, so that reads of theirs that were used are over.
- With `lockstep`, so do instructions that all lanes execute together. PTX does not say so; a warp does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import access_record as rec
from .access_record import ALIKE, CLOCK_SHIFT, CODE_SHIFT, FULL, HAPPENED, LINE_MASK, LINE_SHIFT, READS, alike, bits_of, codes_of
from .clock import Clock, LaneAgents, Said, Strand
from .loads_in_flight import OTHERS
from .sync import Place, in_scope

Row = NDArray[np.int32]
_NOTHING: frozenset[int] = frozenset()


Thread = Any
"""A `Warp`: its `mask` are the lanes that execute an instruction now, at a PTX line, and at first `exited` those that it never has."""


@dataclass
class Fence:
    """A fence of a strand: what a later relaxed write of its lanes releases."""

    bits: int
    scope: int
    clock: Clock
    said: Said


class LaneOrder:
    """What the lanes of one warp have done, counted by `time`, and what they know. Accesses of all lanes or of a single one are recorded
    for `agents`, those of other subsets for `parts`, loads that may be in flight at a release for `late`, by kind. `done` maps engines
    that work for each lane to the time up to which the warp has waited for them. `_told` caches what lanes tell until they act or learn."""

    def __init__(self, name: str, warp: Thread, race: Any) -> None:
        self.name, self.warp, self.race, self.lockstep = name, warp, race, race.lockstep
        self.agents = LaneAgents(race, name, warp.cta)
        self.missing = bits_of(warp.exited)
        self.agents.present = FULL & ~self.missing
        self.parts: LaneAgents | None = None
        self.late: dict[int, LaneAgents] = {}
        self.time = 1
        self.met = self.synced = 0  # when all lanes last waited for each other, and met at a barrier
        self.strands = [Strand(FULL, race.clock())]
        self.done: dict[LaneAgents, int] = {}
        self._told: dict[tuple[int, bool, frozenset[int]], Clock] = {}
        self.fences: list[Fence] = []
        self.light: dict[int, tuple[int, Clock]] = {}
        self.pending: dict[tuple[Place, int], Clock] = {}
        self.seen: dict[tuple[Any, int, int], int] = {}

    def _add(self) -> LaneAgents:
        lanes = LaneAgents(self.race, self.name, self.warp.cta)
        self.race.warps[lanes.agent] = self.agents.agent
        return lanes

    # ---- lanes

    def lanes(self) -> int:
        """The executing lanes; FULL when they are all there are."""
        return FULL if self.warp.mask is None else self.whole(bits_of(self.warp.mask))

    def whole(self, bits: int) -> int:
        return FULL if bits | self.missing == FULL else bits

    def touching(self, bits: int) -> list[Strand]:
        return self.strands if len(self.strands) == 1 else [strand for strand in self.strands if strand.bits & bits]

    def _focus(self, bits: int) -> list[Strand]:
        """Strands that hold exactly these lanes, which are about to learn something: a strand that holds other lanes too is split."""
        self._told.clear()
        if len(self.strands) == 1 and not self.strands[0].bits & ~bits:
            return self.strands
        for strand in list(self.touching(bits)):
            if rest := strand.bits & ~bits:
                self.strands.append(Strand(rest, strand.clock.copy()))
                strand.bits &= bits
        return self.touching(bits)

    # ---- accesses

    def stamp(self, index: Any, code: int | None, reading: bool) -> tuple[NDArray[np.int32], NDArray[np.int64] | int]:
        """The clock rows that all executing lanes know, and the record of their access to locations `index` (one per location). `code` is a
        lane or a code of several lanes (`access_record`); None: every lane has an equal share of the locations, in turn."""
        self._told.clear()
        bits, line = self.lanes(), self.warp.line
        one = not bits & (bits - 1)
        if reading and (kind := self.warp.loads.kinds.get(line)) is not None:
            if (agents := self.late.get(kind)) is None:
                agents = self.late[kind] = self._add()
        elif one or bits == FULL:
            agents = self.agents
        else:
            agents = self.parts = self.parts or self._add()
        agent = agents.entry(bits) if one else agents.agent
        if not (reading and self.lockstep and bits == FULL and agents is self.agents):
            agents.last = self.time
        width, strands = self.race.width, self.touching(bits)
        for strand in strands:
            strand.clock.fit(width)
        rows = strands[0].clock.rows if len(strands) == 1 else reduce(np.minimum, (strand.clock.rows for strand in strands))
        record = self.time << CLOCK_SHIFT | (line & LINE_MASK) << LINE_SHIFT | agent
        if one:
            return rows, record | (bits.bit_length() - 1 if code is None or code == ALIKE else code) << CODE_SHIFT
        mask = bits_of(self.warp.mask)
        if code is None:
            return rows, codes_of(mask, index) | record
        return rows, record | (alike(mask) if code == ALIKE else code) << CODE_SHIFT

    def own(self, last: NDArray[np.int64], warps: Row) -> bool:
        """Whether any of the `last` accesses is of this warp, or of an engine that it has waited for."""
        agents = set((last & rec.AGENT_MASK).tolist())
        return bool(self.done) or any(warps.item(agent) == self.agents.agent for agent in agents)

    def in_order(
        self, last: NDArray[np.int64], records: NDArray[np.int64] | int, warps: Row, reading: bool, level: int
    ) -> NDArray[np.bool_]:
        """Mask of the `last` accesses that program order puts before these, or that cannot conflict because the same lanes made both."""
        change = last ^ records
        same: NDArray[np.bool_] = change & rec.CODE_MASK == 0
        code, when, mine = last >> CODE_SHIFT & rec.LAST, last >> CLOCK_SHIFT, warps[last & rec.AGENT_MASK]
        if level != READS:  # lanes that wrote the same word here
            same = same & (code != rec.SEVERAL) | (code == ALIKE) | (code > rec.SEVERAL)
        elif reading:
            same = same & ((code < ALIKE) | (change & rec.AGENT_MASK == 0))
        else:
            same = same & (code < ALIKE)
        own = mine == self.agents.agent
        same |= when <= self.synced
        for agents, until in self.done.items():
            own |= (last & rec.AGENT_MASK == agents.agent) & (when <= until)
        return same & own

    # ---- what lanes tell

    def _unused(self) -> frozenset[int]:
        return self.warp.loads.by_line.get(self.warp.line, _NOTHING)

    def _say(self, starting: bool) -> Said:
        """What lanes can tell at this moment: other threads, or (`starting`) an engine that works for them."""
        now = self.time
        for strand in self.strands:
            strand.clock.fit(self.race.width)
        own = [self.agents, self.parts] if self.parts else [self.agents]
        read = [(self.agents, now)] if self.lockstep else []
        if self.late:
            unused = self._unused()
            for kind, agents in self.late.items():
                if kind not in unused and self.lockstep:
                    read.append((agents, now))
                else:
                    own.append(agents)
                    if starting:
                        read.append((agents, self.synced))
        done = [(agents, now, agents.last > self._all_know(agents)) for agents in own]
        return Said((*done, *((agents, when, when > self._all_know(agents)) for agents, when in self.done.items())), tuple(read))

    def _all_know(self, agents: LaneAgents) -> int:
        """The time up to which every lane knows what all lanes have done."""
        return min(strand.clock.at(agents.agent) for strand in self.strands)

    def snapshot(self, bits: int | None = None) -> Clock:
        """What lanes (default: those that execute) have done and know, for an operation that they start; not what they do later."""
        return self._tell(bits, True)

    def released(self, bits: int | None = None) -> Clock:
        """What lanes (default: those that execute) tell other threads; not what they do later."""
        return self._tell(bits, False)

    def _tell(self, bits: int | None, starting: bool) -> Clock:
        some_late = bool(self.late)  # else they say the same to everybody, everywhere
        key = self.lanes() if bits is None else bits, starting and some_late, self._unused() if some_late else _NOTHING
        if (clock := self._told.get(key)) is None:
            clock = self._told[key] = self.known(key[0], starting)
            self.time += 1
        clock = clock.copy()
        clock.fit(self.race.width)
        return clock

    def now(self) -> int:
        """The current time; everything released later covers it."""
        self._told.clear()
        return self.time

    def known(self, bits: int | None = None, starting: bool = False) -> Clock:
        bits = self.lanes() if bits is None else bits
        first, *others = self.touching(bits)
        clock = first.clock.copy()
        for strand in others:
            clock.join(strand.clock)
        return self._say(starting).write(clock, bits, self.race)

    # ---- what lanes learn

    def learn(self, clock: Clock, bits: int | None = None) -> None:
        """Lanes (default: those that execute) have synchronized with a thread that knows `clock`."""
        strands = list(self._focus(self.lanes() if bits is None else bits))
        for strand in strands:
            strand.clock.join(clock)
        for strand in strands[1:]:  # strands that now know the same become one
            if np.array_equal(strand.clock.rows, strands[0].clock.rows):
                strands[0].bits |= strand.bits
                self.strands.remove(strand)

    def has_done(self, agents: LaneAgents, until: int) -> None:
        """The executing lanes have waited for an engine that works for each lane of the warp."""
        self._told.clear()
        if (bits := self.lanes()) == FULL:
            self.done[agents] = until
            return
        entries = agents.of(bits)
        for strand in self._focus(bits):
            strand.clock.fit(self.race.width)
            strand.clock.raise_to(rec.EVERY, [(entries, until)])

    def know(self, agent: int, until: int) -> None:
        for strand in self._focus(self.lanes()):
            strand.clock.fit(self.race.width)
            strand.clock.set(agent, max(until, strand.clock.at(agent)))

    def publish_to_async(self, shown_to: tuple[int, ...]) -> None:
        """`fence.proxy.async` by the executing lanes, for either or both spaces."""
        bits = self.lanes()
        for strand in self._focus(bits):
            shown = [(agents.of(bits) if needed else agents.having(bits), when) for agents, when, needed in self._say(False).done]
            strand.clock.fit(self.race.width)
            strand.clock.publish_to_async(shown_to)
            strand.clock.raise_to(shown_to, shown)  # HAPPENED says of whom the strand knows that much

    def sync(self, bits: int) -> None:
        bits = self.whole(bits & ~self.missing)
        clock = self.meet(bits).clock
        if bits == FULL:
            self.synced = self.time
        self._over(clock, bits, (HAPPENED, READS))

    def wait(self) -> None:
        """Another `.sync` instruction of the executing lanes: what they have read and used has been read."""
        last = max(self.agents.last, *(agents.last for agents in self.late.values()), 0) if not self.lockstep else 0
        if self.parts:
            last = max(last, self.parts.last)
        if last >= self.met and last and (bits := self.lanes()) & (bits - 1):
            for strand in list(self._focus(bits)):
                self._over(strand.clock, bits, (READS,))

    def _over(self, clock: Clock, bits: int, rows: tuple[int, ...]) -> None:
        """Accesses of these lanes are complete in `rows`: writes and reads, or reads alone. Loads that nothing has used yet are not."""
        unused = self._unused()
        over = [] if OTHERS in unused else [self.agents, *([self.parts] if self.parts else [])]
        if self.late:
            over += [agents for kind, agents in self.late.items() if kind not in unused]
        told = [(agents.of(bits), self.time) for agents in over] + [(agents.of(bits), when) for agents, when in self.done.items()]
        clock.fit(self.race.width)
        clock.raise_to(rows, told)
        self.time += 1
        self.met = self.time

    def meet(self, bits: int) -> Strand:
        """Merges these lanes into one strand that knows what each of them knew."""
        first, *others = self._focus(bits)
        for strand in others:
            first.clock.join(strand.clock)
            first.bits |= strand.bits
            self.strands.remove(strand)
        return first

    # ---- relaxed operations and fences

    def fence(self, scope: int) -> None:
        """`fence.acq_rel`/`fence.sc` of the executing lanes: completes earlier relaxed reads and arms later relaxed writes."""
        bits = self.lanes()
        for (place, lanes), clock in [
            item for item in self.pending.items() if item[0][1] & bits and in_scope(scope, item[0][0], self.warp.cta)
        ]:
            del self.pending[place, lanes]
            if rest := lanes & ~bits:
                self.pending[place, rest] = clock.copy()
            self.learn(clock, self.whole(lanes & bits))
        self.fences = [fence for fence in self.fences if fence.scope > scope or fence.bits & ~bits]
        said = self._say(False)
        self.fences += [Fence(self.whole(strand.bits & bits), scope, strand.clock.copy(), said) for strand in self.touching(bits)]
        self.time += 1

    def fenced(self, bits: int | None = None) -> list[tuple[int, Clock]]:
        """What a relaxed write of lanes (default: those that execute) releases, by scope: only what their fences have released before."""
        bits = self.lanes() if bits is None else bits
        return [
            (fence.scope, fence.said.write(fence.clock.copy(), self.whole(bits & fence.bits), self.race))
            for fence in self.fences
            if fence.bits & bits
        ]

    def release_agent(self, agents: LaneAgents | int, until: int) -> None:
        """A light fence: a later relaxed arrive of the executing lanes publishes what an agent has done `until` now, and no more."""
        bits = self.lanes()
        entries, name = (agents.of(bits), agents.agent) if isinstance(agents, LaneAgents) else (np.array([agents]), agents)
        clock = Clock(np.zeros((rec.ROWS, self.race.width), np.int32))
        clock.rows[HAPPENED, entries] = clock.rows[READS, entries] = until
        self.light[name] = bits, clock

    def light_fences(self, bits: int | None = None) -> list[Clock]:
        """What a relaxed arrive of lanes (default: those that execute) publishes by light fences of a subset or a superset of them."""
        bits = self.lanes() if bits is None else bits
        return [clock for lanes, clock in self.light.values() if lanes & bits in (lanes, bits)]

    def put_off(self, place: Place, clock: Clock, bits: int) -> None:
        """Keeps what a relaxed read observed; the lanes learn it at their next fence."""
        if (place, bits) not in self.pending:
            self.pending[place, bits] = clock.copy()
        self.pending[place, bits].join(clock)

    def has_seen(self, agents: LaneAgents, until: int) -> bool:
        """Whether the executing lanes know, themselves or from others, that `agents` had acted up to time `until`."""
        if agents is self.agents:
            return True
        return bool(self.released().rows[HAPPENED].take(agents.of(FULL)).max() >= until)

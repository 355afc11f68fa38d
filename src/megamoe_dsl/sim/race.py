"""The race detector: happens-before with vector clocks, per proxy and per scope.

Agents are the warps, lanes where they act alone (`lane_order`), and whatever an engine calls `Race.agent` for (the TMA-load engine behind
each mbarrier, both sides of a warp's TMA stores, the tensor pipe of a CTA). Source: PTX ISA, "Memory Consistency Model".

Findings are grouped by kind, kind of memory or buffer, and the two lines: the first of a group is kept, the others are counted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .access_record import ALIKE, ASYNC, ASYNC_BIT, HAPPENED, QUICK, READS, ROWS, code_of, unordered, unpack
from .chunks import CHUNK, Chunks
from .clock import Actor, Clock, LaneAgents, check_agents
from .lane_order import Thread
from .memory import SMEM_RESERVED, ByteStore, GlobalMemory
from .parser import ParsedKernel
from .report import Finding
from .shadow import Places, Shadow
from .sync import Place, SyncPoint

Rows = NDArray[np.int32]
Accessor = Thread | Actor
ALL = np.iinfo(np.int32).max  # a clock entry that covers whatever the agent does


@dataclass
class Race:
    """Detector state of one run."""

    memory: GlobalMemory
    kernels: dict[ParsedKernel, str]  # see `report`
    lockstep: bool = True  # see `lane_order`
    names: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    findings: dict[tuple[Any, ...], Finding] = field(default_factory=dict)
    points: dict[Any, SyncPoint] = field(default_factory=dict)
    width: int = 64
    quick: Any = QUICK
    state: dict[Any, Any] = field(default_factory=dict)  # of the instruction families
    stores: list[ByteStore] = field(default_factory=list)  # that have a shadow
    lanes: dict[int, LaneAgents] = field(default_factory=dict)  # of the agents that have lanes
    single: int = 0  # agents that are one lane of another
    warps: NDArray[np.int32] = field(default_factory=lambda: np.arange(64, dtype=np.int32))  # agents of a warp and its lanes: its first

    # ---- agents and clocks

    def agent(self, name: str, place: Place) -> int:
        """A new agent of a CTA. Its clock entry starts at 0; use `clock.set(agent, 1)` or higher before its first access."""
        self.names.append(name)
        self.places.append(place)
        check_agents(len(self.names) - self.single, lanes=self.single)
        if len(self.names) > self.width:
            wider = self.width + max(64, self.width // 4)
            self.warps = np.concatenate([self.warps, np.arange(self.width, wider, dtype=np.int32)])
            self.width = wider
        return len(self.names) - 1

    def clock(self) -> Clock:
        return Clock(np.zeros((ROWS, self.width), np.int32))

    def engine(self, warp: Thread, name: str, clock: Clock, asynchronous: bool = True, rows: Any = slice(None)) -> Actor:
        """The actor of the next operation of a warp's engine: it knows `clock`, in these rows of which the operation is counted."""
        agent, count = warp.state.get(("engine", name)) or (self.agent(f"{self.names[warp.agent]} {name}", warp.cta), 0)
        warp.state["engine", name] = agent, count + 1
        clock.fit(self.width)
        clock.own()[rows, agent] = count + 1
        return Actor(agent, clock, warp.line, asynchronous)

    def complete(self, clock: Clock, ctas: Collection[Place]) -> None:
        """The end of a launch of these CTAs: all that their agents have done is visible to both proxies before the next launch."""
        clock.fit(self.width)
        clock.own()[:, [i for i, place in enumerate(self.places) if place in ctas]] = ALL
        clock.publish_to_async(ASYNC.values())

    def forget(self) -> None:
        for store in self.stores:
            store.shadow = None
        for kept in (self.places, self.points, self.state, self.stores, self.lanes):
            kept.clear()

    # ---- accesses

    def read_bytes(self, store: ByteStore, where: Places, size: int, actor: Accessor, parts: bool = False) -> None:
        """Read of `size` bytes at each offset in `where`, of a byte slice, or of chunks, in shared memory or a global buffer. A warp's
        lanes have an offset each, or all the same slice; with `parts` every lane has a part of the whole."""
        if not store.read_only:
            shadow = store.shadow or self.shadow_of(store)
            self.read(shadow, shadow.index(where, size), actor, code_of(where, parts))

    def write_bytes(self, store: ByteStore, where: Places, size: int, actor: Accessor, parts: bool = False) -> None:
        """Write of `size` bytes at each offset in `where`, of a byte slice, or of chunks; lanes as in `read_bytes`."""
        shadow = store.shadow or self.shadow_of(store)
        self.write(shadow, shadow.index(where, size), actor, code_of(where, parts))

    def strong_bytes(self, store: ByteStore, where: Places, size: int, actor: Accessor, **options: Any) -> None:
        """A strong access of `size` bytes at each offset in `where`; options as of `strong`."""
        shadow = self.shadow_of(store)
        self.strong(shadow, shadow.index(where, size), actor, **options)

    def shadow_of(self, store: ByteStore) -> Shadow:
        if store.shadow is None:
            store.shadow = Shadow(len(store.data), CHUNK, store.name, store.label, store.origin, store.space)
            self.stores.append(store)
        return store.shadow

    def read(self, shadow: Shadow, index: Any, actor: Accessor, code: int | None = None) -> None:
        """A weak read of locations `index` (from `Shadow.index`). `code`: what lanes do all of it; None: each has its share in turn."""
        rows, records = self._stamp(index, actor, code, reading=True)
        if isinstance(actor, Actor):
            proxy, own, synced = shadow.space if actor.asynchronous else HAPPENED, -1, 0
        else:
            proxy, own, synced = HAPPENED, actor.order.agents.agent, actor.order.synced
        beside = self.quick.read(shadow.write, shadow.read, shadow.has_strong, index, rows, proxy, records, self.warps, own, synced)
        if beside is not None:
            if beside:
                shadow.concurrent().add(*beside)
            return
        self._against_writes("RAW race", "missing fence.proxy.async before async-proxy read", shadow, index, rows, records, actor)
        if shadow.has_strong is not None:
            self._against_strong("weak read vs unordered atomic", shadow, index, False, rows, records, actor)
        last = shadow.read[index] if isinstance(index, slice) else shadow.read.take(index)
        bad = unordered(last, rows[READS])
        if bad is not None and (bad := self._unknown(last, bad, rows, READS, records, actor, reading=True)) is not None:
            whole = np.arange(index.start, index.stop) if isinstance(index, slice) else index
            each = np.broadcast_to(records, len(whole))
            shadow.concurrent().add(whole[bad], each[bad])
            index, records = whole[~bad], each[~bad]
        shadow.read[index] = records

    def read_shared_if_known(self, cta: Place, chunks: Chunks, actor: Actor) -> bool:
        """A read like `read_bytes`, if nothing was done there that its reader does not know of; else nothing happens, and False."""
        shadow = cta.shared.shadow or self.shadow_of(cta.shared)
        if not cta.shared.holds(chunks.low, chunks.end):
            return False
        index = shadow.index(chunks, CHUNK)
        rows, record = self._stamp(index, actor, None, reading=True)
        return self.quick.access(shadow.write, shadow.read, shadow.has_strong, None, index, rows, shadow.space, record, True)

    def write(self, shadow: Shadow, index: Any, actor: Accessor, code: int | None = None) -> None:
        """A weak write of locations `index`."""
        rows, records = self._stamp(index, actor, code)
        others = shadow.readers.some if shadow.readers is not None else None
        proxy = shadow.space if isinstance(actor, Actor) and actor.asynchronous else HAPPENED
        if self.quick.access(shadow.write, shadow.read, shadow.has_strong, others, index, rows, proxy, records, False):
            return
        self._against_writes("WAW race", "missing fence.proxy.async before async-proxy write", shadow, index, rows, records, actor)
        last = shadow.read[index]
        self._check("WAR race", shadow, index, last, rows, READS, records, actor)
        for chosen, last in shadow.readers.unknown(index, rows[READS]) if shadow.readers is not None else ():
            whole = np.arange(index.start, index.stop) if isinstance(index, slice) else index
            mine = records if isinstance(records, int) else records[chosen]
            self._check("WAR race", shadow, whole[chosen], last, rows, READS, mine, actor)
        if shadow.has_strong is not None:
            self._against_strong("weak write vs unordered atomic", shadow, index, True, rows, records, actor)
        shadow.write[index] = records

    def _check(self, kind: str, shadow: Shadow, index: Any, last: Any, rows: Rows, level: int, records: Any, actor: Accessor) -> bool:
        """Reports a finding if some of the accesses `last` did not happen before this one; returns whether it did."""
        bad = unordered(last, rows[level])
        if bad is None or (bad := self._unknown(last, bad, rows, level, records, actor)) is None:
            return False
        at = int(np.argmax(bad))
        location = index.start + at if isinstance(index, slice) else int(index[at])
        self._report_records(kind, shadow, location, int(last[at]), records if isinstance(records, int) else int(records[at]), actor)
        return True

    def _against_writes(self, race: str, proxy: str, shadow: Shadow, index: Any, rows: Rows, records: Any, actor: Accessor) -> None:
        """Findings between the last writes of `index` and an access: no order, or no proxy fence."""
        last = shadow.write[index]
        raced = self._check(race, shadow, index, last, rows, HAPPENED, records, actor)
        if not raced and isinstance(actor, Actor) and actor.asynchronous and shadow.space:
            self._check(proxy, shadow, index, np.where(last & ASYNC_BIT, 0, last), rows, shadow.space, records, actor)

    def strong(self, shadow: Shadow, index: Any, actor: Accessor, writes: bool | None = None, lane: int | None = None) -> None:
        """An atomic, relaxed, acquire, release or volatile access: races only with weak ones. `writes` says which weak accesses it can
        conflict with later; None: with none (mbarriers, which have checks of their own). `lane`: of a warp's lanes, this one alone."""
        rows, records = self._stamp(index, actor, lane, reading=writes is False)
        for kind, last, row in (("write", shadow.write, HAPPENED), ("read", shadow.read, READS))[: 2 if writes else 1]:
            if not self.quick.knows(last, index, rows, row):
                self._check(f"atomic vs unordered weak {kind}", shadow, index, last[index], rows, row, records, actor)
        if writes is not None:
            shadow.add_strong(index, records, writes)

    def _against_strong(self, kind: str, shadow: Shadow, index: Any, before_write: bool, rows: Rows, records: Any, actor: Accessor) -> None:
        for at, record, writes in shadow.strong_at(index, before_write):
            level = HAPPENED if writes else READS
            agent, _, _, clock = unpack(record)
            if clock <= rows[level, agent]:
                continue
            mine = records if isinstance(records, int) else records[index == at]
            last = np.full(1 if isinstance(mine, int) else len(mine), record)
            if self._unknown(last, np.ones(len(last), np.bool_), rows, level, mine, actor) is not None:
                self._report_records(kind, shadow, at, record, mine if isinstance(mine, int) else int(mine[0]), actor)

    def _stamp(self, index: Any, actor: Accessor, code: int | None, reading: bool = False) -> tuple[Rows, Any]:
        """What the accessor knows, all its lanes at least that, and its access records: one for all locations, or one for each."""
        if not isinstance(actor, Actor):
            return actor.order.stamp(index, code, reading)
        clock = actor.clock
        if clock.rows.shape[1] < self.width:
            clock.fit(self.width)
        return clock.rows, actor.stamp()

    def _unknown(
        self, last: Any, bad: Any, rows: Rows, level: int, records: Any, actor: Accessor, reading: bool = False
    ) -> NDArray[np.bool_] | None:
        """The accesses `bad`, which no clock entry covers, without those that program order or single lanes cover; None if none is left."""
        if not isinstance(actor, Actor):
            order = actor.order
            if reading and not order.own(last, self.warps):
                return bad  # type: ignore[no-any-return]
            bad = bad & ~order.in_order(last, records, self.warps, reading, level)
            if not bad.any():
                return None
            if reading:  # a read that is kept beside another for nothing does no harm
                return bad
            if len(order.strands) > 1:
                for strand in order.strands:
                    known = strand.has(records) & bad
                    if known.any():
                        bad = bad & ~(known & self._covered(last, known, strand.clock.rows[level]))
                return bad if bad.any() else None
        elif reading:
            return bad  # type: ignore[no-any-return]
        bad = bad & ~self._covered(last, bad, rows[level])
        return bad if bad.any() else None

    def _covered(self, last: Any, bad: Any, row: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the accesses `bad` a clock row covers, lane by lane."""
        beyond = unordered(last, row)
        out = np.ones(len(last), np.bool_) if beyond is None else ~beyond
        for record in set(last[bad & ~out].tolist()):
            agent, code, _, clock = unpack(record)
            if (lanes := self.lanes.get(agent)) is not None and lanes.groups and lanes.known(row, code, clock):
                out |= last == record
        return out

    # ---- flags

    def publish(self, key: Any, warp: Thread, semantics: str, scope: int, replace: bool, lanes: int) -> None:
        """A strong write of lanes at `key`. `replace`: a plain store, which ends earlier release sequences; an atomic continues them."""
        point = self.points.setdefault(key, SyncPoint())
        if replace:
            point.clear()
        point.publish(warp.order, warp.cta, scope, lanes, relaxed=semantics not in ("release", "acq_rel"))

    def observe(self, key: Any, warp: Thread, semantics: str, scope: int, lanes: int) -> None:
        """A strong read of lanes at `key`. A relaxed one takes effect at a later fence."""
        point = self.points.get(key)
        if point is None or not point.released:
            return
        order = warp.order
        if semantics in ("acquire", "acq_rel"):
            if order.seen.get((key, scope, lanes)) == point.version:
                return
            order.seen[(key, scope, lanes)] = point.version
            if (missed := point.acquire(order, warp.cta, scope, lanes)) is not None:
                across = "ranks" if missed.rank != warp.cta.rank else "CTAs"
                kind = f"insufficient scope for synchronization across {across}"
                if isinstance(key, tuple):
                    self.report(kind, missed, "shared flag", f"shared flag smem+{key[1] - SMEM_RESERVED}", 0, warp)
                else:
                    allocation, offset = self.memory.find(key, 1)
                    self.report(kind, missed, f"flag {allocation.name}", f"flag {allocation}+{offset}", 0, warp)
            return
        point.put_off(order, warp.cta, scope, lanes)

    # ---- findings

    def _report_records(self, kind: str, shadow: Shadow, location: int, first: int, second: int, actor: Accessor) -> None:
        agent, _, line, _ = unpack(first)
        self.report(kind, agent, shadow.place, shadow.where(location), line, actor, self._name(first), self._name(second))

    def _name(self, record: int) -> str:
        """Who made an access: an agent, and which of its lanes if one did alone."""
        agent, code, _, _ = unpack(record)
        return f"{self.names[agent]} lane {code}" if agent in self.lanes and code < ALIKE else self.names[agent]

    def report(self, kind: str, first: int | Place | str, place: str, where: str, first_line: int, actor: Accessor, *names: str) -> None:
        """Record a finding between `first` (an agent, CTA or name) and `actor`, in a kind of memory `place`. `names` replace theirs."""
        own = self.places[actor.agent].kernel
        other = self.places[first].kernel if isinstance(first, int) else own if isinstance(first, str) else first.kernel
        key = (kind, place, self.kernels[other], first_line, self.kernels[own], actor.line)
        if found := self.findings.get(key):
            found.count += 1
            return
        name, own_name = names or (self.names[first] if isinstance(first, int) else str(first), self.names[actor.agent])
        self.findings[key] = Finding(
            kind, name, own_name, where, first_line, actor.line,
            other.sources.get(first_line, ""), own.sources.get(actor.line, ""), self.kernels[other], self.kernels[own],
        )  # fmt: skip


class Unwatched(tuple[Any, ...]):
    """Stands for the detector of a run without one, and for its clocks and lane orders: false, empty, and any call of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, self)  # found without this call from now on
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


UNWATCHED: Any = Unwatched()

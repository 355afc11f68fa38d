"""The race detector: happens-before with vector clocks, per proxy and per scope.

Agents are the warps, and whatever an engine calls `Race.agent` for (the TMA-load engine behind each mbarrier, the source-read and
destination-write sides of a warp's TMA stores, the tensor pipe of a CTA). An actor is anything with `agent`, `clock`, `line` and
`asynchronous`; a warp is one. Source: PTX ISA, "Memory Consistency Model".

Findings are grouped by kind, kind of memory or buffer, and the two lines: the first of a group is kept, the others are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accessor import Accessor, Actor, Place, Thread
from .agents import check_agents
from .chunks import CHUNK
from .clock import HAPPENED, Clock
from .kernel_names import KernelNames
from .memory import SMEM_BYTES, SMEM_RESERVED, Allocation, ByteStore, GlobalMemory
from .report import Finding
from .shadow import AGENT_MASK, ASYNC_BIT, CLOCK_SHIFT, LINE_MASK, LINE_SHIFT, Places, Shadow, pack, unordered
from .sync import SyncPoint, in_scope

TENSOR, GLOBAL, SHARED = 0, 1, 2
ALL = np.iinfo(np.int32).max  # a clock entry that covers whatever the agent does


@dataclass
class Race:
    """Detector state of one run."""

    memory: GlobalMemory
    kernels: KernelNames = field(default_factory=KernelNames)
    names: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    findings: dict[tuple[Any, ...], Finding] = field(default_factory=dict)
    points: dict[Any, SyncPoint] = field(default_factory=dict)
    width: int = 64
    state: dict[Any, Any] = field(default_factory=dict)  # of the instruction families
    shadows: dict[int, Shadow] = field(default_factory=dict)

    # ---- agents and clocks

    def agent(self, name: str, place: Place) -> int:
        """A new agent of a CTA. Its clock entry starts at 0; use `clock.set(agent, 1)` or higher before its first access."""
        self.names.append(name)
        self.places.append(place)
        check_agents(len(self.names))
        while len(self.names) > self.width:
            self.width *= 2
        return len(self.names) - 1

    def clock(self) -> Clock:
        """A clock that knows nothing."""
        return Clock(np.zeros((3, self.width), np.int32))

    def snapshot(self, warp: Thread) -> Clock:
        """The warp's knowledge at the issue of an asynchronous operation; what the warp does later is not covered."""
        clock = warp.clock.copy()
        warp.clock.tick(warp.agent)
        clock.fit(self.width)
        return clock

    def barrier_init(self, warp: Thread) -> Actor:
        """Who writes in `mbarrier.init`: an agent of its own, because `fence.mbarrier_init` releases these writes and no others."""
        if (agent := warp.state.get("mbarrier.init")) is None:
            agent = warp.state["mbarrier.init"] = self.agent(f"{self.names[warp.agent]} mbarrier.init", warp.cta)
        warp.clock.fit(self.width)
        warp.clock.tick(agent)
        return Actor(agent, warp.clock, warp.line, asynchronous=False)

    def fence_barrier_init(self, warp: Thread) -> None:
        """`fence.mbarrier_init.release.cluster`: a later relaxed cluster arrive publishes the warp's `mbarrier.init`s."""
        if (agent := warp.state.get("mbarrier.init")) is not None:
            self.release_agent(warp, agent, warp.clock.at(agent))

    def release_agent(self, warp: Thread, agent: int, until: int) -> None:
        """A light fence: a later relaxed arrive of the warp publishes what one of its own agents has done `until` now, and no more."""
        clock = self.clock()
        clock.rows[HAPPENED, agent] = until
        warp.state.setdefault("light fences", {})[agent] = clock

    def relaxed_release(self, warp: Thread, scope: int) -> list[Clock]:
        """What a relaxed arrive at `scope` publishes: only what an earlier fence has released."""
        clocks = [clock for level, clock in warp.fences.items() if level >= scope]
        return [*clocks, *warp.state.get("light fences", {}).values()]

    def complete(self, clock: Clock, rank: int) -> None:
        """The end of a launch: all that any agent of the rank has done happened, and is visible to both proxies, before the next launch."""
        clock.fit(self.width)
        agents = [i for i, place in enumerate(self.places) if place.rank == rank]
        clock.rows[:, agents] = ALL
        clock.publish_to_async(in_global=True, in_shared=True)

    # ---- accesses

    def read_shared(self, cta: Place, where: Places, size: int, actor: Accessor) -> None:
        """Read of `size` bytes at each offset in `where`, of a byte slice, or of chunks."""
        shadow = cta.shared.shadow or self._shared_shadow(cta)
        self.read(shadow, shadow.index(where, size), actor)

    def write_shared(self, cta: Place, where: Places, size: int, actor: Accessor) -> None:
        """Write of `size` bytes at each offset in `where`, of a byte slice, or of chunks."""
        shadow = cta.shared.shadow or self._shared_shadow(cta)
        self.write(shadow, shadow.index(where, size), actor)

    def read_global(self, allocation: Allocation, where: NDArray[np.int64] | slice, size: int, actor: Accessor) -> None:
        """Read at byte offsets of an allocation (see `GlobalMemory.find`)."""
        if not allocation.read_only:
            shadow = self.global_shadow(allocation)
            self.read(shadow, shadow.index(where, size), actor)

    def write_global(self, allocation: Allocation, where: NDArray[np.int64] | slice, size: int, actor: Accessor) -> None:
        """Write at byte offsets of an allocation."""
        shadow = self.global_shadow(allocation)
        self.write(shadow, shadow.index(where, size), actor)

    def tensor_shadow(self, cta: Place, size: int) -> Shadow:
        """A shadow for tensor memory; the engine numbers its locations as it likes."""
        return Shadow(size, 1, "tmem", f"{cta} tmem", 0, TENSOR)

    def _shared_shadow(self, cta: Place) -> Shadow:
        cta.shared.shadow = Shadow(SMEM_BYTES, CHUNK, "smem", f"{cta} smem", SMEM_RESERVED, SHARED)
        return cta.shared.shadow

    def global_shadow(self, allocation: Allocation) -> Shadow:
        """The shadow of a global buffer in this run."""
        if (shadow := self.shadows.get(allocation.base)) is None:
            shadow = Shadow(len(allocation.data), CHUNK, allocation.name, repr(allocation), 0, GLOBAL)
            self.shadows[allocation.base] = shadow
        return shadow

    def shadow_of(self, store: ByteStore, cta: Place | None) -> Shadow:
        """The shadow of a shared memory or of a global buffer."""
        if cta is not None:
            return cta.shared.shadow or self._shared_shadow(cta)
        assert isinstance(store, Allocation)
        return self.global_shadow(store)

    def read(self, shadow: Shadow, index: Any, actor: Accessor) -> None:
        """A weak read of locations `index` (from `Shadow.index`)."""
        row = self._row(actor)
        self._against_writes("RAW race", "missing fence.proxy.async before async-proxy read", shadow, index, row, actor)
        if shadow.has_strong is not None:
            self._against_strong("weak read vs unordered atomic", shadow, shadow.strong_at(index, False), row, actor)
        record = pack(actor.agent, int(row[actor.agent]), actor.line, actor.asynchronous)
        if (bad := unordered(shadow.read[index], row)) is not None:
            if isinstance(index, slice):
                index = np.arange(index.start, index.stop)
            shadow.add_reader(index[bad], record)
            index = index[~bad]
        shadow.read[index] = record

    def write(self, shadow: Shadow, index: Any, actor: Accessor) -> None:
        """A weak write of locations `index`."""
        row = self._row(actor)
        self._against_writes("WAW race", "missing fence.proxy.async before async-proxy write", shadow, index, row, actor)
        last = shadow.read[index]
        if (bad := unordered(last, row)) is not None:
            self._report("WAR race", shadow, index, last, bad, actor)
        if shadow.shared_read is not None:
            whole = np.arange(index.start, index.stop) if isinstance(index, slice) else index
            for here, last in shadow.readers(whole):
                if (bad := unordered(last, row)) is not None:
                    self._report("WAR race", shadow, here, last, bad, actor)
        if shadow.has_strong is not None:
            self._against_strong("weak write vs unordered atomic", shadow, shadow.strong_at(index, True), row, actor)
        shadow.write[index] = pack(actor.agent, int(row[actor.agent]), actor.line, actor.asynchronous)

    def _against_writes(self, race: str, proxy: str, shadow: Shadow, index: Any, row: NDArray[np.int32], actor: Accessor) -> None:
        """Findings between the last writes of `index` and an access: no order, or no proxy fence."""
        last = shadow.write[index]
        if (bad := unordered(last, row)) is not None:
            self._report(race, shadow, index, last, bad, actor)
        elif actor.asynchronous and shadow.space:
            bad = unordered(last, actor.clock.rows[shadow.space])
            if bad is not None and (bad := bad & ((last & ASYNC_BIT) == 0)).any():
                self._report(proxy, shadow, index, last, bad, actor)

    def strong(self, shadow: Shadow, index: Any, actor: Accessor, writes: bool | None = None) -> None:
        """An atomic, relaxed, acquire, release or volatile access: races only with weak ones.

        `writes` says which weak accesses it can conflict with later; None: with none (mbarriers, which have checks of their own).
        """
        row = self._row(actor)
        last = shadow.write[index]
        if (bad := unordered(last, row)) is not None:
            self._report("atomic vs unordered weak write", shadow, index, last, bad, actor)
        if writes and (bad := unordered(last := shadow.read[index], row)) is not None:
            self._report("atomic vs unordered weak read", shadow, index, last, bad, actor)
        if writes is not None:
            shadow.add_strong(index, pack(actor.agent, int(row[actor.agent]), actor.line, actor.asynchronous), writes)

    def _against_strong(self, kind: str, shadow: Shadow, records: list[tuple[int, int]], row: NDArray[np.int32], actor: Accessor) -> None:
        for at, record in records:
            agent = record & AGENT_MASK
            if record >> CLOCK_SHIFT > row[agent]:
                self.report(kind, agent, shadow.place, shadow.where(at), record >> LINE_SHIFT & LINE_MASK, actor)

    def _row(self, actor: Accessor) -> NDArray[np.int32]:
        if actor.clock.rows.shape[1] < self.width:
            actor.clock.fit(self.width)
        return actor.clock.rows[HAPPENED]

    # ---- flags

    def publish(self, key: Any, warp: Thread, semantics: str, scope: int, replace: bool) -> None:
        """A strong write at `key`. `replace`: a plain store, which ends earlier release sequences; an atomic continues them."""
        point = self.points.get(key)
        if point is None:
            point = self.points[key] = SyncPoint()
        if replace:
            point.clear()
        if semantics in ("release", "acq_rel"):
            point.release(warp.clock, warp.cta, scope)
            warp.clock.tick(warp.agent)
        else:  # a relaxed write after a fence makes a release pattern, at the narrower of the two scopes
            for level, clock in warp.fences.items():
                point.release(clock, warp.cta, min(level, scope))

    def observe(self, key: Any, warp: Thread, semantics: str, scope: int) -> None:
        """A strong read at `key`. A relaxed one takes effect at a later fence."""
        point = self.points.get(key)
        if point is None or not point.released:
            return
        if semantics in ("acquire", "acq_rel"):
            if warp.seen.get((key, scope)) == point.version:
                return
            warp.seen[(key, scope)] = point.version
            missed = point.acquire(warp.clock, warp.cta, scope)
            if missed is not None:
                across = "ranks" if missed.rank != warp.cta.rank else "CTAs"
                kind = f"insufficient scope for synchronisation across {across}"
                self.report(kind, missed, *self._flag(key), 0, warp)
            return
        for (released, place), clock in point.released.items():
            if in_scope(released, place, warp.cta) and in_scope(scope, place, warp.cta):
                known = warp.pending.get(place)
                if known is None:
                    warp.pending[place] = clock.copy()
                else:
                    known.join(clock)

    def _flag(self, key: Any) -> tuple[str, str]:
        """Kind of memory and location of a flag."""
        if isinstance(key, tuple):
            return "shared flag", f"shared flag smem+{key[1] - SMEM_RESERVED}"
        allocation, offset = self.memory.find(key, 1)
        return f"flag {allocation.name}", f"flag {allocation}+{offset}"

    def fence(self, warp: Thread, scope: int) -> None:
        """`fence.acq_rel`/`fence.sc` at `scope`: completes earlier relaxed reads and arms later relaxed writes."""
        for place in [p for p in warp.pending if in_scope(scope, p, warp.cta)]:
            warp.clock.join(warp.pending.pop(place))
        warp.fences = {level: clock for level, clock in warp.fences.items() if level > scope}
        warp.fences[scope] = warp.clock.copy()
        warp.clock.tick(warp.agent)

    # ---- findings

    def _report(self, kind: str, shadow: Shadow, index: Any, last: Any, bad: Any, actor: Accessor) -> None:
        at = int(np.argmax(bad))
        location = index.start + at if isinstance(index, slice) else int(index[at])
        first = int(last[at])
        line = first >> LINE_SHIFT & LINE_MASK
        self.report(kind, first & AGENT_MASK, shadow.place, shadow.where(location), line, actor)

    def report(self, kind: str, first: int | Place | str, place: str, where: str, first_line: int, actor: Accessor) -> None:
        """Record a finding between `first` (an agent, a CTA or a name) and `actor`, at a location `where` of a kind of memory `place`."""
        own = self.places[actor.agent].kernel
        other = self.places[first].kernel if isinstance(first, int) else own if isinstance(first, str) else first.kernel
        key = (kind, place, self.kernels.of(other), first_line, self.kernels.of(own), actor.line)
        if found := self.findings.get(key):
            found.count += 1
            return
        name = self.names[first] if isinstance(first, int) else str(first)
        self.findings[key] = Finding(
            kind, name, self.names[actor.agent], where, first_line, actor.line,
            other.sources.get(first_line, ""), own.sources.get(actor.line, ""), self.kernels.of(other), self.kernels.of(own),
        )  # fmt: skip

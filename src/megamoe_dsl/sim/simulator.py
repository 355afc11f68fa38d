"""The public entry: PTX text and memory in, a report out; and the machine of ranks, clusters, CTAs and warps that a run is.

Every sweep visits all live warps in a random order and lets each run for a while; asynchronous actions mature a random number of sweeps
after they were posted. The seed fixes all of it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from .access_record import FULL
from .clock import agents_needed, check_agents
from .cta import Cluster, Cta, Grid, Warp
from .errors import Deadlock, SimError, require_integer
from .geometry import Dim3, Launch
from .interfaces import STRICT, Action, Assumptions, Origin, RunState
from .memory import SMEM_RESERVED, GlobalMemory
from .program import load
from .race import UNWATCHED, Race
from .report import Report, describe_line, kernel_names
from .simt import run_warp

QUANTUM = 400
IDLE_LIMIT = 300


@dataclass(eq=False)
class World(RunState):
    """One run, with what moves it on."""

    live: list[Cluster] = field(default_factory=list)
    ended: list[Cluster] = field(default_factory=list)  # those whose memory an action that is under way may still touch
    streams: dict[int, Grid] = field(default_factory=dict)
    ending: list[Grid] = field(default_factory=list)  # of which all clusters have ended

    # ---- loading

    def queue(self, launch: Launch) -> None:
        grid = self.streams[launch.rank] = Grid(launch, self.streams.get(launch.rank))
        for z, y, x in product(*(range(0, size, step) for size, step in zip(launch.grid[::-1], launch.cluster[::-1], strict=True))):
            self.waiting.append((grid, (x, y, z)))
            grid.unfinished += 1

    def _cluster(self, grid: Grid, origin: Dim3) -> Cluster:
        cluster, launch = Cluster(grid), grid.launch
        cx, cy, cz = launch.cluster
        for r in range(cx * cy * cz):
            ctaid = (origin[0] + r % cx, origin[1] + r // cx % cy, origin[2] + r // (cx * cy))
            cta = Cta(self, cluster, grid, ctaid, r)
            cta.warps = [Warp(self, cta, grid.program, i) for i in range(launch.warps)]
            cluster.ctas.append(cta)
            grid.ctas.add(cta)
        cluster.barrier.expected = launch.threads * len(cluster.ctas)
        if known := grid.begins_with():
            for warp in (w for cta in cluster.ctas for w in cta.warps):
                warp.order.learn(known, FULL)
        return cluster

    # ---- running

    def run(self, resident: int, progress: Callable[[int, float], None] | None = None, most_instructions: int | None = None) -> None:
        """Run everything queued; at most `resident` clusters at a time, and about `most_instructions` warp instructions."""
        idle, began = 0, time.perf_counter()
        while self.waiting or self.live:
            while len(self.live) < resident and (start := self._startable()) is not None:
                self.live.append(self._cluster(*start))
            before = self.progress
            warps = [w for cluster in self.live for cta in cluster.ctas for w in cta.warps if not w.done]
            self.rng.shuffle(warps)
            for warp in warps:
                if warp.rest:
                    warp.rest -= 1
                elif warp.wake is None or len(warp.fragments) > 1 or warp.wake():
                    warp.wake = None
                    run_warp(self, warp, QUANTUM)
            self.sweeps += 1
            self._asynchronous()
            self._retire()
            if progress:
                progress(self.instructions, time.perf_counter() - began)
            if most_instructions is not None and self.instructions > most_instructions:
                what = f"{self.instructions:,} warp instructions and no end: a loop without one, or more are needed (most_instructions)"
                raise SimError(describe_warps(self, self.live, what))
            idle = 0 if self.progress != before or self._posted else idle + 1
            if idle > IDLE_LIMIT:
                raise Deadlock(describe_warps(self, self.live, "no warp can make progress"))
        while self._posted or any(self.pipes):
            self.sweeps += 1
            self._asynchronous()

    def forget(self, clusters: list[Cluster]) -> None:
        for cta in (cta for cluster in clusters for cta in cluster.ctas):
            cta.forget()
        clusters.clear()

    def _startable(self) -> tuple[Grid, Dim3] | None:
        """The next cluster whose stream has got that far; what earlier launches posted has then happened."""
        for i, (grid, origin) in enumerate(self.waiting):
            if grid.may_begin() if grid.launch.early else grid.before is None or not (grid.before.unfinished or self._posted):
                del self.waiting[i]
                return grid, origin
        return None

    def _asynchronous(self) -> None:
        if self._posted:
            due = [item for item in self._posted if item[0] <= self.sweeps]
            if due:
                self._posted = [item for item in self._posted if item[0] > self.sweeps]
                self.rng.shuffle(due)
                for _, origin, action in due:
                    self._act(origin, action)
        for actions in self.pipes:
            if actions and self.rng.random() < 0.7:
                for _ in range(min(len(actions), self.rng.randint(1, 8))):
                    self._act(*actions.popleft())

    def _act(self, origin: Origin, action: Action) -> None:
        self.progress += 1
        try:
            action()
        except SimError as error:
            raise type(error)(f"{error} [asynchronous, from {origin()}]") from None

    def _retire(self) -> None:
        for cluster in [c for c in self.live if c.finished()]:
            if any(self.pipes):
                continue  # a pipe may still refer to this cluster's memory
            self.live.remove(cluster)
            self.ended.append(cluster)
            grid = cluster.grid
            grid.left(cluster.ctas, (warp.order.known(FULL) for cta in cluster.ctas for warp in cta.warps), self.race)
            if not grid.unfinished:
                self.ending.append(grid)
            self.progress += 1
            for cta in cluster.ctas:
                for check in cta.exit_checks.values():
                    check(cta)
        if not self._posted:
            for grid in self.ending:
                grid.settled = True
                self.progress += 1
            self.ending = []
            self.forget(self.ended)


def describe_warps(world: RunState, live: Iterable[Cluster], what: str) -> str:
    """What happened, then every unfinished warp and the state of every barrier."""
    out = [what]
    for cluster in live:
        for cta in cluster.ctas:
            out += [f"  {cta}"]
            out += [f"    {_describe_warp(world, warp)}" for warp in cta.warps if not warp.done]
            out += [f"    mbarrier smem+{offset - SMEM_RESERVED}: {bar}" for offset, bar in sorted(cta.mbarriers.items())]
            out += [f"    barrier {n}: {bar}" for n, bar in sorted(cta.barriers.items()) if bar.arrived]
        out.append(f"    cluster barrier: {cluster.barrier}")
    return "\n".join(out)


def _describe_warp(world: RunState, warp: Warp) -> str:
    parts = []
    for fragment in warp.fragments:
        ins = warp.kernel.code[fragment.pc]
        lanes = 32 if fragment.mask is None else int(fragment.mask.sum())
        why = fragment.why() if callable(fragment.why) else fragment.why
        line = describe_line(ins.line, world.kernels[warp.kernel], ins.source or "")
        parts.append(f"{line}: {ins.opcode}, {lanes} lanes" + (f"; waits on {why}" if why else ""))
    return f"warp {warp.index}: {'; '.join(parts)}"


_COLLECT_AFTER = 50_000  # objects; what a run leaves in cycles is little, and looking for it takes a tenth of its time


@dataclass
class Simulator:
    """Runs the kernels of one or more PTX modules.

    The first entry of `ptx` is the program of launches that name none; with `ptx` None every launch names its own. `seed` fixes the
    random schedule, `race` turns the detector on, `max_delay` bounds the delay of asynchronous actions in scheduler sweeps,
    `progress(instructions, seconds)` is called after every sweep, and `resident` bounds how many CTAs of all ranks run at once
    (default: all). `assumptions` say what the run takes for granted. `most_instructions` bounds the warp instructions of a run
    (default: none).

    Raises SimError for an argument that is out of range.
    """

    ptx: str | None
    memory: GlobalMemory
    seed: int = 0
    race: bool = True
    max_delay: int = 3
    progress: Callable[[int, float], None] | None = None
    resident: int | None = None
    assumptions: Assumptions = STRICT
    most_instructions: int | None = None

    def __post_init__(self) -> None:
        require_integer("seed", self.seed, None)
        require_integer("max_delay", self.max_delay, 0)
        for name, value in (("resident", self.resident), ("most_instructions", self.most_instructions)):
            if value is not None:
                require_integer(name, value, 1)
        self.program = None if self.ptx is None else load(self.ptx)

    def run(self, launches: Sequence[Launch]) -> Report:
        """Run all launches to the end, those of one rank in this order. Raises SimError (Deadlock when nothing can progress)."""
        if not launches:
            raise SimError("nothing to launch")
        for launch in launches:
            launch.check()
        if self.race:
            check_agents(agents_needed(launches), so_far=False)
        launches = [launch if launch.program else replace(launch, program=self.program) for launch in launches]
        programs = [launch.checked() for launch in launches]
        if self.assumptions.late_loads:
            programs = [program.with_late_loads for program in programs]
            launches = [replace(launch, program=program) for launch, program in zip(launches, programs, strict=True)]
        if uses := [text for program in programs for text in program.binder.unwaited if not self.assumptions.tensor_waits]:
            raise SimError(f"{uses[0]} (to run it all the same: Assumptions(tensor_waits=True))")
        kernels = kernel_names(program.kernel for program in programs)
        race = Race(self.memory, kernels, self.assumptions.lockstep) if self.race else UNWATCHED
        world = World(self.memory, self.seed, race, self.max_delay, kernels, self.assumptions)
        for program in set(programs):
            for name, line in program.kernel.unwritten.items():
                world.warnings[f"{describe_line(line, kernels[program.kernel], '')}: {name} is read, and nothing writes it"] += 1
        for launch in launches:
            world.queue(launch)
        start = time.perf_counter()
        cluster_size = max(prod(launch.cluster) for launch in launches)
        resident = len(world.waiting) if self.resident is None else max(1, self.resident // cluster_size)
        first, *others = gc.get_threshold()
        gc.set_threshold(max(first, _COLLECT_AFTER) if first else 0, *others)
        try:
            with np.errstate(all="ignore"):
                world.run(resident, self.progress, self.most_instructions)
        finally:
            gc.set_threshold(first, *others)
            for clusters in (world.ended, world.live):
                world.forget(clusters)
            race.forget()
        return Report(world.instructions, time.perf_counter() - start, list(race.findings.values()), world.warnings, world.crossed)

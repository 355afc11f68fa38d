"""The machine: ranks of clusters of CTAs of warps, and the scheduling loop that runs them.

Every sweep visits all live warps in a random order and lets each run for a while; asynchronous actions mature a random number of sweeps
after they were posted. The seed fixes all of it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable

from .access_record import FULL
from .assumptions import Assumptions
from .cta import Cluster, Cta, Grid, Warp
from .errors import Deadlock, SimError
from .geometry import Dim3
from .interfaces import Action, Origin, WorldLike
from .launch import Launch
from .memory import GlobalMemory
from .race import Race
from .report import KernelNames, describe_line
from .simt import run_warp
from .sync import Place

QUANTUM = 400
IDLE_LIMIT = 300


class World:
    """One run: state that all launches share."""

    def __init__(
        self, memory: GlobalMemory, seed: int, race: Race | None, max_delay: int, kernels: KernelNames, assumptions: Assumptions
    ) -> None:
        self.memory, self.race, self.max_delay, self.kernels, self.assumptions = memory, race, max_delay, kernels, assumptions
        self.rng = random.Random(seed)
        self.instructions = self.sweeps = self.progress = self._uid = 0
        self.warnings: Counter[str] = Counter()
        self.copied: Counter[tuple[int, int]] = Counter()
        self.live: list[Cluster] = []
        self.ended: list[Cluster] = []  # those whose memory an action that is under way may still touch
        self.waiting: deque[tuple[Grid, Dim3]] = deque()
        self.streams: dict[int, Grid] = {}
        self.ending: list[Grid] = []  # of which all clusters have ended
        self.pipes: list[deque[tuple[Origin, Action]]] = []
        self._posted: list[tuple[int, Origin, Action]] = []

    def next_uid(self) -> int:
        """A number that nothing else in this run has."""
        self._uid += 1
        return self._uid

    def clock(self) -> int:
        """Simulated time: advances with instructions, and with sweeps when nothing runs."""
        return self.instructions + 64 * self.sweeps

    def chance(self, probability: float) -> bool:
        """Whether something happens that does with this probability."""
        return self.rng.random() < probability

    def post(self, action: Action, origin: Origin) -> None:
        """Run `action` after a random delay; `origin` names it in errors (see `ops.common.origin`)."""
        self.progress += 1
        self._posted.append((self.sweeps + self.rng.randint(0, self.max_delay), origin, action))

    # ---- loading

    def queue(self, launch: Launch) -> None:
        """Split a launch into clusters."""
        program = launch.checked()
        grid = self.streams[launch.rank] = Grid(launch, program, program.pack(launch.args), self.streams.get(launch.rank))
        gx, gy, gz = launch.grid
        cx, cy, cz = launch.cluster
        for z in range(0, gz, cz):
            for y in range(0, gy, cy):
                for x in range(0, gx, cx):
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
        cluster.expected = launch.threads * len(cluster.ctas)
        if self.race and (known := grid.begins_with()):
            for warp in (w for cta in cluster.ctas for w in cta.warps):
                warp.order.learn(known, FULL)
        return cluster

    # ---- running

    def run(self, resident: int, tick: Callable[[], None] | None = None, most_instructions: int | None = None) -> None:
        """Run everything queued; at most `resident` clusters at a time, and about `most_instructions` warp instructions."""
        idle = 0
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
            if tick:
                tick()
            if most_instructions is not None and self.instructions > most_instructions:
                what = f"{self.instructions:,} warp instructions and no end: a loop without one, or more are needed (most_instructions)"
                raise SimError(describe_warps(self, self.live, what))
            idle = 0 if self.progress != before or self._posted else idle + 1
            if idle > IDLE_LIMIT:
                raise Deadlock(describe_warps(self, self.live, "no warp can make progress"))
        while self._posted or any(self.pipes):
            self.sweeps += 1
            self._asynchronous()

    def forget(self) -> None:
        """Give back the memory of all that has run."""
        for cluster in (*self.ended, *self.live):
            for cta in cluster.ctas:
                cta.forget()
        self.ended, self.live = [], []

    def cancel(self, cta: Place) -> Dim3 | None:
        """Take back a cluster of the grid of `cta` that has not started: the index of its first CTA, None when all have."""
        grid = next(cluster.grid for cluster in self.live if cluster is cta.cluster)
        for i, (other, origin) in enumerate(self.waiting):
            if other is grid:
                del self.waiting[i]
                grid.cancel()
                return origin
        return None

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
                for check in cta.exit_checks:
                    check()
        if not self._posted:
            for grid in self.ending:
                grid.settled = True
                self.progress += 1
            self.ending = []
            for cta in (cta for cluster in self.ended for cta in cluster.ctas):
                cta.forget()
            self.ended = []


def describe_warps(world: WorldLike, live: Iterable[Cluster], what: str) -> str:
    """What happened, then every unfinished warp and the state of every barrier."""
    out = [what]
    for cluster in live:
        for cta in cluster.ctas:
            out += [f"  {cta}"]
            out += [f"    {_describe_warp(world, warp)}" for warp in cta.warps if not warp.done]
            out += _describe_barriers(cta)
        out.append(f"    cluster barrier: {cluster.arrived}/{cluster.expected} arrived, generation {cluster.generation}")
    return "\n".join(out)


def _describe_warp(world: WorldLike, warp: Warp) -> str:
    parts = []
    for fragment in warp.fragments:
        ins = warp.kernel.code[fragment.pc]
        lanes = 32 if fragment.mask is None else int(fragment.mask.sum())
        why = fragment.why() if callable(fragment.why) else fragment.why
        line = describe_line(ins.line, world.kernels.of(warp.kernel), ins.source or "")
        parts.append(f"{line}: {ins.opcode}, {lanes} lanes" + (f"; waits on {why}" if why else ""))
    return f"warp {warp.index}: {'; '.join(parts)}"


def _describe_barriers(cta: Cta) -> list[str]:
    out = [f"    mbarrier smem+{offset - 1024}: {bar}" for offset, bar in sorted(cta.mbarriers.items())]
    out += [f"    barrier {n}: {bar}" for n, bar in sorted(cta.barriers.items()) if bar.arrived]
    return out

"""The machine: ranks of clusters of CTAs of warps, and the scheduling loop that runs them.

Every sweep visits all live warps in a random order and lets each run for a while; asynchronous actions mature a random number of sweeps
after they were posted. The seed fixes all of it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .clock import Clock
from .errors import Deadlock, SimError
from .memory import SMEM_MAX, SMEM_RESERVED, ByteStore, GlobalMemory, SharedMemory
from .operands import Lanes, Mask
from .ops import BLOCK, Outcome
from .race import Race
from .report import describe_deadlock
from .simt import Fragment, run_warp
from .special import LANE

if TYPE_CHECKING:
    from .program import Program

Dim3 = tuple[int, int, int]
QUANTUM = 400
IDLE_LIMIT = 300


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `args` follow the PTX parameter order: int for a scalar, bytes for an aggregate.

    Launches of one rank form a stream: each begins when the one before it has ended. Ranks do not wait for each other.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    dynamic_smem: int = 0
    args: tuple[int | bytes, ...] = ()
    rank: int = 0


class Warp:
    """32 lanes. `R` holds the registers; `state` belongs to the instruction families."""

    __slots__ = (
        "R", "agent", "asynchronous", "clock", "cta", "done", "exited", "fences", "fragments", "index", "line", "local", "pending",
        "poll", "rest", "seen", "sleep", "state", "thread_index", "wake", "why", "world",
    )  # fmt: skip

    def __init__(self, world: World, cta: Cta, index: int) -> None:
        self.world, self.cta, self.index = world, cta, index
        block = cta.launch.block
        linear = LANE.astype(np.int64) + 32 * index
        lanes = linear < block[0] * block[1] * block[2]
        self.thread_index = (linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1]))
        self.exited = ~lanes
        self.fragments = [Fragment(0, None if lanes.all() else lanes)]
        self.R: list[Lanes] = world.program.fresh_registers()
        self.done = False
        self.line = 0
        self.wake: Callable[[], bool] | None = None
        self.why: str | Callable[[], str] | None = None
        self.sleep = self.rest = 0
        self.poll: tuple[int, bytes] = (-1, b"")
        self.state: dict[Any, Any] = {}
        self.local: ByteStore | None = None
        self.asynchronous = False
        self.agent = 0
        self.clock: Clock
        self.fences: dict[int, Clock] = {}
        self.pending: dict[Cta, Clock] = {}
        self.seen: dict[Any, int] = {}
        if world.race:
            self.agent = world.race.agent(f"{cta} warp {index}")

    def __repr__(self) -> str:
        return f"{self.cta} warp {self.index}"

    def local_memory(self) -> ByteStore:
        """The .local memory of the 32 lanes, one stride after the other."""
        if self.local is None:
            self.local = ByteStore(np.zeros(32 * self.world.program.local_stride, np.uint8), None)
        return self.local

    def lanes(self, mask: Mask) -> list[int]:
        """The lanes of a mask."""
        return list(range(32)) if mask is None else np.flatnonzero(mask).tolist()

    def first(self, mask: Mask) -> int:
        """The lowest lane of a mask."""
        return 0 if mask is None else int(mask.argmax())

    def converged(self, mask: Mask) -> bool:
        """Whether all lanes that have not exited are here (for `.aligned` and full-mask `.sync` instructions)."""
        return mask is None or bool((mask | self.exited).all())

    def block(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome:
        """Answer BLOCK: `why` goes to the deadlock report; `wake` is a cheap test that says when to try again."""
        self.why, self.wake = why, wake
        return BLOCK


class NamedBarrier:
    """One of the sixteen barriers of a CTA (`bar`, `barrier.cta`)."""

    __slots__ = ("arrived", "clock", "done", "expected", "generation", "values", "whole")

    def __init__(self) -> None:
        self.arrived = self.expected = self.generation = 0
        self.whole = False  # no thread count: all warps of the CTA that have not exited
        self.clock: Clock | None = None
        self.done: Clock | None = None
        self.values: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.arrived}/{self.expected} threads arrived, generation {self.generation}"

    def complete(self) -> None:
        """All expected threads are here: start the next generation."""
        self.arrived, self.generation = 0, self.generation + 1
        self.done, self.clock = self.clock, None
        self.values = {"result": self.values.get("sum")}


class Cta:
    """A thread block. `state` belongs to the engines; `exit_checks` run when all warps have left."""

    def __init__(self, world: World, cluster: Cluster, launch: Launch, ctaid: Dim3, cluster_rank: int, parameters: Any) -> None:
        self.world, self.cluster, self.launch, self.ctaid, self.cluster_rank = world, cluster, launch, ctaid, cluster_rank
        self.rank = launch.rank
        self.uid = world.next_uid()
        self.sm = ctaid[0] + launch.grid[0] * (ctaid[1] + launch.grid[1] * ctaid[2])
        self.parameters = parameters
        self.shared = SharedMemory(world.program.kernel.static_smem + launch.dynamic_smem, str(self))
        self.shared_base = cluster_rank << 24 | SMEM_RESERVED
        self.barriers: dict[int, NamedBarrier] = {}
        self.mbarriers: dict[int, Any] = {}
        self.state: dict[Any, Any] = {}
        self.exit_checks: list[Callable[[], None]] = []
        self.warps: list[Warp] = []

    def barrier(self, number: int) -> NamedBarrier:
        """Named barrier `number`."""
        return self.barriers.setdefault(number, NamedBarrier())

    def live_threads(self) -> int:
        """Threads a barrier without a count waits for: whole warps that have not exited."""
        return sum(32 for warp in self.warps if not warp.done)

    def warp_left(self) -> None:
        """A warp exited: barriers without a count may now be complete."""
        for bar in self.barriers.values():
            if bar.whole and bar.arrived and bar.arrived == self.live_threads():
                bar.complete()

    def __repr__(self) -> str:
        x, y, z = self.ctaid
        return f"rank {self.rank} CTA ({x},{y},{z})"


class Cluster:
    """CTAs that share distributed shared memory and the cluster barrier."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.ctas: list[Cta] = []
        self.arrived = self.expected = self.generation = 0
        self.clock: Clock | None = None
        self.done: Clock | None = None

    def arrive(self, lanes: int) -> None:
        """`lanes` threads arrive at the cluster barrier."""
        self.arrived += lanes
        self._complete_if_all()

    def leave(self, lanes: int) -> None:
        """`lanes` threads exit: the barrier no longer waits for them."""
        self.expected -= lanes
        self._complete_if_all()

    def _complete_if_all(self) -> None:
        if self.arrived and self.arrived == self.expected:
            self.arrived, self.generation = 0, self.generation + 1
            self.done, self.clock = self.clock, None

    def finished(self) -> bool:
        return all(warp.done for cta in self.ctas for warp in cta.warps)


class Grid:
    """A launch in its rank's stream: clusters that have not ended, and the launch before it."""

    def __init__(self, launch: Launch, before: Grid | None) -> None:
        self.launch, self.before = launch, before
        self.unfinished = 0
        self.end: Clock | None = None  # what the next launch of the stream knows

    def left(self, cluster: Cluster, race: Race | None) -> None:
        """A cluster has ended."""
        self.unfinished -= 1
        if race:
            self.end = self.end or race.clock()
            for warp in (w for cta in cluster.ctas for w in cta.warps):
                self.end.join(warp.clock)
            if not self.unfinished:
                race.complete(self.end, self.launch.rank)


class Pipe:
    """Actions that run in the order they were pushed, at random times (the tensor pipe of a CTA)."""

    def __init__(self, world: World) -> None:
        self.world, self.actions = world, deque[tuple[str, Callable[[], None]]]()
        world.pipes.append(self)

    def push(self, action: Callable[[], None], origin: str) -> None:
        """Append an action; `origin` names it in errors."""
        self.world.progress += 1
        self.actions.append((origin, action))


class World:
    """One run: state that all launches share."""

    def __init__(self, program: Program, memory: GlobalMemory, seed: int, race: Race | None, max_delay: int) -> None:
        self.program, self.memory, self.race, self.max_delay = program, memory, race, max_delay
        self.rng = random.Random(seed)
        self.instructions = self.sweeps = self.progress = self._uid = 0
        self.warnings: Counter[str] = Counter()
        self.live: list[Cluster] = []
        self.waiting: deque[tuple[Grid, Callable[[], Cluster]]] = deque()
        self.streams: dict[int, Grid] = {}
        self.pipes: list[Pipe] = []
        self._posted: list[tuple[int, str, Callable[[], None]]] = []

    def next_uid(self) -> int:
        self._uid += 1
        return self._uid

    def clock(self) -> int:
        """Simulated time: advances with instructions, and with sweeps when nothing runs."""
        return self.instructions + 64 * self.sweeps

    def post(self, action: Callable[[], None], origin: str) -> None:
        """Run `action` after a random delay; `origin` names it in errors (`f"{warp} PTX line {line}"`)."""
        self.progress += 1
        self._posted.append((self.sweeps + self.rng.randint(0, self.max_delay), origin, action))

    # ---- loading

    def queue(self, launch: Launch) -> None:
        """Split a launch into clusters."""
        kernel = self.program.kernel
        if kernel.static_smem + launch.dynamic_smem > SMEM_MAX:
            raise SimError(f"{kernel.static_smem + launch.dynamic_smem} bytes of shared memory; {SMEM_MAX} are available")
        if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
            raise SimError(f"grid {launch.grid} is not a multiple of the cluster {launch.cluster}")
        if kernel.required_threads and int(np.prod(kernel.required_threads)) != int(np.prod(launch.block)):
            raise SimError(f"block {launch.block} differs from .reqntid {kernel.required_threads}")
        parameters = self.program.pack(launch.args)
        grid = self.streams[launch.rank] = Grid(launch, self.streams.get(launch.rank))
        gx, gy, gz = launch.grid
        cx, cy, cz = launch.cluster
        for z in range(0, gz, cz):
            for y in range(0, gy, cy):
                for x in range(0, gx, cx):
                    self.waiting.append((grid, lambda o=(x, y, z): self._cluster(grid, o, parameters)))  # type: ignore[misc]
                    grid.unfinished += 1

    def _cluster(self, grid: Grid, origin: Dim3, parameters: Any) -> Cluster:
        cluster, launch = Cluster(grid), grid.launch
        cx, cy, cz = launch.cluster
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        for r in range(cx * cy * cz):
            ctaid = (origin[0] + r % cx, origin[1] + r // cx % cy, origin[2] + r // (cx * cy))
            cta = Cta(self, cluster, launch, ctaid, r, parameters)
            cta.warps = [Warp(self, cta, i) for i in range(-(-threads // 32))]
            cluster.ctas.append(cta)
        cluster.expected = threads * len(cluster.ctas)
        if self.race:
            for warp in (w for cta in cluster.ctas for w in cta.warps):
                warp.clock = self.race.clock()
                if grid.before and grid.before.end:
                    warp.clock.join(grid.before.end)
                warp.clock.tick(warp.agent)
        return cluster

    # ---- running

    def run(self, resident: int, tick: Callable[[], None] | None = None) -> None:
        """Run everything queued; at most `resident` clusters at a time."""
        idle = 0
        while self.waiting or self.live:
            while len(self.live) < resident and (start := self._startable()) is not None:
                self.live.append(start())
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
            idle = 0 if self.progress != before or self._posted else idle + 1
            if idle > IDLE_LIMIT:
                raise Deadlock(describe_deadlock(self))
        while self._posted or any(p.actions for p in self.pipes):
            self.sweeps += 1
            self._asynchronous()

    def _startable(self) -> Callable[[], Cluster] | None:
        """The next cluster whose stream has got that far; what earlier launches posted has then happened."""
        for i, (grid, start) in enumerate(self.waiting):
            if grid.before is None or not (grid.before.unfinished or self._posted):
                del self.waiting[i]
                return start
        return None

    def _asynchronous(self) -> None:
        if self._posted:
            due = [item for item in self._posted if item[0] <= self.sweeps]
            if due:
                self._posted = [item for item in self._posted if item[0] > self.sweeps]
                self.rng.shuffle(due)
                for _, origin, action in due:
                    self._act(origin, action)
        for pipe in self.pipes:
            if pipe.actions and self.rng.random() < 0.7:
                for _ in range(min(len(pipe.actions), self.rng.randint(1, 8))):
                    self._act(*pipe.actions.popleft())

    def _act(self, origin: str, action: Callable[[], None]) -> None:
        self.progress += 1
        try:
            action()
        except SimError as error:
            raise type(error)(f"{error} [asynchronous, from {origin}]") from None

    def _retire(self) -> None:
        for cluster in [c for c in self.live if c.finished()]:
            if any(p.actions for p in self.pipes):
                continue  # a pipe may still refer to this cluster's memory
            self.live.remove(cluster)
            cluster.grid.left(cluster, self.race)
            self.progress += 1
            for cta in cluster.ctas:
                for check in cta.exit_checks:
                    check()

"""Launches in their streams, clusters of thread blocks, and thread blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .clock import Clock
from .geometry import Dim3
from .interfaces import CtaLike, WorldLike
from .launch import Launch
from .memory import SMEM_RESERVED, ByteStore, SharedMemory
from .race import Race
from .sync import BarrierState
from .warp import Warp


class Grid:
    """A launch with its program and parameters, the launch before it in the stream, and how many of its clusters have not ended.

    end      what the next launch of the stream knows once all have
    settled  whether all have, and what they had posted has happened
    """

    def __init__(self, launch: Launch, before: Grid | None) -> None:
        self.launch, self.before = launch, before
        self.program = launch.checked()
        self.parameters = ByteStore(self.program.pack(launch.args), None)
        self.unfinished = 0
        self.end: Clock | None = None
        self.settled = False
        self.ctas: set[CtaLike] = set()
        self._let: set[CtaLike] = set()
        self._waited: set[CtaLike] = set()
        self._after_waiting = True
        self._holding = launch.ctas

    # ---- launches that begin early

    def let_next(self, cta: CtaLike, waited: bool) -> None:
        """A CTA lets the next launch begin; whether who does has waited for the launches before. Only its first time counts."""
        if cta not in self._let:
            self._let.add(cta)
            self._after_waiting &= waited
            self._holding -= 1

    def may_begin(self) -> bool:
        """Whether the launches before let it, if it is early."""
        return self.before is None or not self.before._holding

    def begins_with(self) -> Clock | None:
        """What its threads know at first. Of the launches before an early one those that the one before it had waited for, everywhere."""
        if self.before is None or not self.launch.early:
            return self.before.end if self.before else None
        earlier = self.before.before
        return earlier.end if earlier and self.before._after_waiting else self.before.begins_with()

    def must_wait(self) -> bool:
        """Whether it may run beside launches before it, and the last of these has not ended."""
        return self.launch.early and self.before is not None and not self.before.settled

    def waited(self, cta: CtaLike) -> Clock | None:
        """Threads of a CTA have waited for the launches before; what they know then."""
        self._waited.add(cta)
        return self.before.end if self.before else None

    # ---- its end

    def cancel(self) -> None:
        """A cluster will not start."""
        self.unfinished -= 1
        self._holding -= self.launch.ctas_of_cluster

    def left(self, ctas: Iterable[CtaLike], clocks: Iterable[Clock], race: Race | None) -> None:
        """A cluster of these CTAs has ended; `clocks` are those of its warps."""
        self.unfinished -= 1
        for cta in ctas:
            self.let_next(cta, cta in self._waited)
        if race:
            self.end = self.end or race.clock()
            for clock in clocks:
                self.end.join(clock)
            if not self.unfinished:
                race.complete(self.end, self.ctas)


class Cta:
    """A thread block. `state` belongs to the engines; `exit_checks` run when all warps have left."""

    def __init__(self, world: WorldLike, cluster: Cluster, grid: Grid, ctaid: Dim3, cluster_rank: int) -> None:
        self.world, self.cluster, self.ctaid, self.cluster_rank = world, cluster, ctaid, cluster_rank
        launch = self.launch = grid.launch
        self.program, self.kernel = grid.program, grid.program.kernel
        self.rank = launch.rank
        self.uid = world.next_uid()
        self.sm = ctaid[0] + launch.grid[0] * (ctaid[1] + launch.grid[1] * ctaid[2])
        self.parameters = grid.parameters
        self.shared = SharedMemory(self.kernel.static_smem + launch.dynamic_smem, str(self))
        self.shared_base = cluster_rank << 24 | SMEM_RESERVED
        self.barriers: dict[int, BarrierState] = {}
        self.mbarriers: dict[int, Any] = {}
        self.state: dict[Any, Any] = {}
        self.exit_checks: list[Callable[[], None]] = []
        self.warps: list[Warp] = []

    def barrier(self, number: int) -> BarrierState:
        return self.barriers.setdefault(number, BarrierState())

    def live_threads(self) -> int:
        """Threads a barrier without a count waits for: whole warps that have not exited."""
        return sum(32 for warp in self.warps if not warp.done)

    def warp_left(self) -> None:
        """A warp exited: barriers without a count may now be complete."""
        for bar in self.barriers.values():
            if bar.whole and bar.arrived and bar.arrived == self.live_threads():
                bar.complete()

    def forget(self) -> None:
        """It has ended: give its memory back now, which is large, and not when somebody looks for circles of references."""
        for warp in self.warps:
            warp.forget()
        for kept in (self.warps, self.state, self.mbarriers, self.barriers, self.exit_checks):
            kept.clear()
        del self.shared

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
        """Whether every warp of every CTA is done."""
        return all(warp.done for cta in self.ctas for warp in cta.warps)

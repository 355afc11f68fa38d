"""Thread blocks with their named barriers, and clusters of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .clock import Clock
from .launch import Dim3, Launch
from .memory import SMEM_RESERVED, SharedMemory
from .warp import Warp

if TYPE_CHECKING:
    from .machine import Grid, World


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

"""Thread blocks and clusters of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .clock import Clock
from .geometry import Dim3
from .grid import Grid
from .interfaces import WorldLike
from .memory import SMEM_RESERVED, SharedMemory
from .named_barrier import BarrierState
from .warp import Warp


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

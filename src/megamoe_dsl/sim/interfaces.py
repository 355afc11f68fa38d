"""What engines and instruction families see of the machine: world, cluster, CTA and warp, whose classes say what their methods do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .accessor import Thread
from .assumptions import Assumptions
from .clock import Clock
from .fragment import Fragment, Outcome
from .geometry import Dim3, Geometry
from .lanes import Lanes, Mask
from .memory import ByteStore, GlobalMemory, SharedMemory
from .parser import ParsedKernel
from .race import Race
from .report import KernelNames
from .sync import BarrierState, Place

Action = Callable[[], None]
Origin = Callable[[], str]
"""Says which instruction posted an action, when an error asks."""


class WorldLike(Protocol):
    """One run: state that all launches share.

    `progress` counts changes that another warp could wait for, `copied` bytes as a `Report` does; `pipes` holds actions that keep their
    order, with their origins.
    """

    memory: GlobalMemory
    kernels: KernelNames
    race: Race | None
    assumptions: Assumptions
    instructions: int
    sweeps: int
    progress: int
    warnings: Counter[str]
    copied: Counter[tuple[int, int]]
    pipes: list[deque[tuple[Origin, Action]]]

    def next_uid(self) -> int: ...

    def clock(self) -> int: ...

    def cancel(self, cta: CtaLike) -> Dim3 | None: ...

    def chance(self, probability: float) -> bool: ...

    def post(self, action: Action, origin: Origin) -> None: ...


class GridLike(Protocol):
    """A launch in its stream, as far as launches that begin early ask."""

    def let_next(self, cta: CtaLike, waited: bool) -> None: ...

    def must_wait(self) -> bool: ...

    def waited(self, cta: CtaLike) -> Clock | None: ...


class ClusterLike(Protocol):
    """CTAs that share distributed shared memory and the cluster barrier."""

    arrived: int
    expected: int
    generation: int
    clock: Clock | None
    done: Clock | None

    @property
    def ctas(self) -> Sequence[CtaLike]: ...

    @property
    def grid(self) -> GridLike: ...

    def arrive(self, lanes: int) -> None: ...

    def leave(self, lanes: int) -> None: ...


class CtaLike(Place, Protocol):
    """A thread block. `state` belongs to the engines; `exit_checks` run when all warps have left."""

    shared: SharedMemory
    cluster_rank: int
    ctaid: Dim3
    uid: int
    sm: int
    parameters: ByteStore
    shared_base: int
    barriers: dict[int, BarrierState]
    mbarriers: dict[int, Any]
    state: dict[Any, Any]
    exit_checks: list[Callable[[], None]]

    @property
    def launch(self) -> Geometry: ...

    @property
    def world(self) -> WorldLike: ...

    @property
    def cluster(self) -> ClusterLike: ...

    @property
    def warps(self) -> Sequence[WarpLike]: ...

    def barrier(self, number: int) -> BarrierState: ...

    def live_threads(self) -> int: ...

    def warp_left(self) -> None: ...


class WarpLike(Thread, Protocol):
    """32 lanes. `R` holds the registers; `state` belongs to the instruction families."""

    R: list[Lanes]
    index: int
    mask: Mask
    thread_index: tuple[Lanes, Lanes, Lanes]
    exited: Lanes
    done: bool
    fragments: list[Fragment]
    poll: tuple[int, bytes]
    why: str | Callable[[], str] | None
    wake: Callable[[], bool] | None
    sleep: int
    rest: int
    local: ByteStore | None

    @property
    def world(self) -> WorldLike: ...

    @property
    def cta(self) -> CtaLike: ...

    @property
    def kernel(self) -> ParsedKernel: ...

    def local_memory(self) -> ByteStore: ...

    def lanes(self, mask: Mask) -> list[int]: ...

    def first(self, mask: Mask) -> int: ...

    def converged(self, mask: Mask) -> bool: ...

    def park(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome: ...

    def block(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome: ...

"""What engines and instruction families see of the machine: world, cluster, CTA and warp."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .accessor import Thread
from .assumptions import Assumptions
from .clock import Clock
from .fragment import Fragment
from .geometry import Dim3, Geometry
from .kernel_names import KernelNames
from .lanes import Lanes, Mask
from .memory import ByteStore, GlobalMemory, SharedMemory
from .named_barrier import BarrierState
from .outcome import Outcome
from .parser import ParsedKernel
from .place import Place
from .race import Race

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

    def next_uid(self) -> int:
        """A number that no CTA of this run has."""
        ...

    def clock(self) -> int: ...

    def cancel(self, cta: CtaLike) -> Dim3 | None:
        """Take back a cluster of the grid of `cta` that has not started: the index of its first CTA, None when all have."""
        ...

    def chance(self, probability: float) -> bool:
        """Whether something happens that does with this probability."""
        ...

    def post(self, action: Action, origin: Origin) -> None:
        """Run `action` after a random delay; `origin` names it in errors."""
        ...


class GridLike(Protocol):
    """A launch in its stream, as far as launches that begin early ask."""

    def let_next(self, cta: CtaLike, waited: bool) -> None:
        """A CTA lets the next launch begin; whether who does has waited for the launches before."""
        ...

    def must_wait(self) -> bool:
        """Whether it may run beside launches before it, and the last of these has not ended."""
        ...

    def waited(self, cta: CtaLike) -> Clock | None:
        """Threads of a CTA have waited for the launches before; what they know then."""
        ...


class ClusterLike(Protocol):
    """CTAs that share distributed shared memory and the cluster barrier."""

    arrived: int
    expected: int
    generation: int
    clock: Clock | None
    done: Clock | None

    @property
    def ctas(self) -> Sequence[CtaLike]:
        """By rank in the cluster."""
        ...

    @property
    def grid(self) -> GridLike: ...

    def arrive(self, lanes: int) -> None:
        """`lanes` threads arrive at the cluster barrier."""
        ...

    def leave(self, lanes: int) -> None:
        """`lanes` threads exit: the barrier no longer waits for them."""
        ...


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
    def launch(self) -> Geometry:
        """The shape of its launch."""
        ...

    @property
    def world(self) -> WorldLike: ...

    @property
    def cluster(self) -> ClusterLike: ...

    @property
    def warps(self) -> Sequence[WarpLike]: ...

    def barrier(self, number: int) -> BarrierState: ...

    def live_threads(self) -> int:
        """Threads a barrier without a count waits for."""
        ...

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

    def local_memory(self) -> ByteStore:
        """The .local memory of the 32 lanes, one stride after the other."""
        ...

    def lanes(self, mask: Mask) -> list[int]:
        """The lanes of a mask."""
        ...

    def first(self, mask: Mask) -> int:
        """The lowest lane of a mask."""
        ...

    def converged(self, mask: Mask) -> bool:
        """Whether all lanes that have not exited are here."""
        ...

    def park(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome:
        """Answer PARK: like `block`, for lanes that have arrived and now wait."""
        ...

    def block(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome:
        """Answer BLOCK: `why` goes to the deadlock report; `wake` is a cheap test that says when to try again."""
        ...

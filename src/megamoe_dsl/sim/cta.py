"""Launches in their streams, clusters of thread blocks, thread blocks, their warps, and fragments of warps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum, auto
from math import prod
from typing import Any, TypeVar

import numpy as np

from .clock import Clock
from .geometry import Dim3, Launch
from .interfaces import RunState
from .lane_order import LaneOrder
from .lanes import LANE, Lanes, Mask
from .loads_in_flight import LoadsInFlight
from .memory import SMEM_RESERVED, ByteStore, SharedMemory
from .race import UNWATCHED, Race
from .sync import BarrierState


class Outcome(Enum):
    """Result of a handler that did not simply finish its instruction."""

    BLOCK = auto()  # not executed: try again later (the same lanes, the same instruction, with lanes that come to it meanwhile)
    PARK = auto()  # the same, but these lanes have arrived somewhere: those that come to it meanwhile stay apart
    YIELD = auto()  # executed, but it only polled: let others run before going on
    EXIT = auto()  # these lanes leave the kernel


BLOCK, PARK, YIELD, EXIT = Outcome
ALL_LANES = b"\x01" * 32


class Fragment:
    """Lanes at one program counter; `mask` is None for all 32, `bits` are its bytes."""

    def __init__(self, pc: int, mask: Mask) -> None:
        self.pc = pc
        self.set(mask)
        self.polled = self.parked = False
        self.why: str | Callable[[], str] | None = None  # what a blocked fragment waits on

    def set(self, mask: Mask) -> None:
        bits = ALL_LANES if mask is None else mask.tobytes()
        self.mask, self.bits = (None, ALL_LANES) if bits == ALL_LANES else (mask, bits)


class Grid:
    """One launch: its parameters, its predecessor in the stream, and the number of unfinished clusters."""

    def __init__(self, launch: Launch, before: Grid | None) -> None:
        self.launch, self.program, self.before = launch, launch.program, before
        self.parameters = ByteStore(launch.program.pack(launch.args), None)
        self.unfinished = 0
        self.end: Clock | None = None  # what the next launch of the stream knows once all have
        self.settled = False  # whether all have, and what they had posted has happened
        self.ctas: set[Cta] = set()
        self._let: set[Cta] = set()
        self._waited: set[Cta] = set()
        self._after_waiting = True
        self._holding = launch.ctas

    # ---- launches that begin early

    def let_next(self, cta: Cta, waited: bool) -> None:
        """A CTA lets the next launch begin, in a thread that had `waited` for earlier launches or not. Only the first call counts."""
        if cta not in self._let:
            self._let.add(cta)
            self._after_waiting &= waited
            self._holding -= 1

    def may_begin(self) -> bool:
        return self.before is None or not self.before._holding

    def begins_with(self) -> Clock | None:
        """What its threads know at their start: of an early launch, the launches for which all CTAs of its predecessor had waited."""
        if self.before is None or not self.launch.early:
            return self.before.end if self.before else None
        earlier = self.before.before
        return earlier.end if earlier and self.before._after_waiting else self.before.begins_with()

    def must_wait(self) -> bool:
        """Whether it may run beside launches before it, and the last of these has not ended."""
        return self.launch.early and self.before is not None and not self.before.settled

    def waited(self, cta: Cta) -> Clock | None:
        """Records that a CTA has waited for its predecessors (griddepcontrol.wait); returns the clock it learns."""
        self._waited.add(cta)
        return self.before.end if self.before else None

    # ---- its end

    def cancel(self) -> None:
        self.unfinished -= 1
        self._holding -= prod(self.launch.cluster)

    def left(self, ctas: Iterable[Cta], clocks: Iterable[Clock], race: Race) -> None:
        """A cluster of these CTAs has ended; `clocks` are those of its warps."""
        self.unfinished -= 1
        for cta in ctas:
            self.let_next(cta, cta in self._waited)
        self.end = self.end or race.clock()
        for clock in clocks:
            self.end.join(clock)
        if not self.unfinished:
            race.complete(self.end, self.ctas)


class Cta:
    """A thread block. `state` belongs to the engines; `exit_checks` run when all warps have left."""

    def __init__(self, world: RunState, cluster: Cluster, grid: Grid, ctaid: Dim3, cluster_rank: int) -> None:
        self.world, self.cluster, self.ctaid, self.cluster_rank = world, cluster, ctaid, cluster_rank
        launch = self.launch = grid.launch
        self.program, self.kernel = grid.program, grid.program.kernel
        self.rank = launch.rank
        self.uid = next(world.uids)
        self.sm = ctaid[0] + launch.grid[0] * (ctaid[1] + launch.grid[1] * ctaid[2])
        self.parameters = grid.parameters
        self.shared = SharedMemory(self.kernel.static_smem + launch.dynamic_smem, str(self))
        self.shared_base = cluster_rank << 24 | SMEM_RESERVED
        self.barriers: defaultdict[int, BarrierState] = defaultdict(BarrierState)
        self.mbarriers: dict[int, Any] = {}
        self.state: dict[Any, Any] = {}
        self.exit_checks: dict[str, Callable[[Cta], None]] = {}
        self.warps: list[Warp] = []

    def live_threads(self) -> int:
        """Threads a barrier without a count waits for: whole warps that have not exited."""
        return sum(32 for warp in self.warps if not warp.done)

    def forget(self) -> None:
        """Free its memory, which is large, now that it has ended; references in cycles would keep it until the next garbage collection."""
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
        self.barrier = BarrierState()

    def finished(self) -> bool:
        return all(warp.done for cta in self.ctas for warp in cta.warps)


Owner = TypeVar("Owner", Cta, "Warp")
Kept = TypeVar("Kept")


def kept(owner: Owner, key: object, make: Callable[[Owner], Kept]) -> Kept:
    """State of a CTA or warp under a key; `make` creates it at first use."""
    if (found := owner.state.get(key)) is None:
        found = owner.state[key] = make(owner)
    return found  # type: ignore[no-any-return]


class Warp:
    """32 lanes. `R` holds the registers; `state` belongs to the instruction families."""

    def __init__(self, world: RunState, cta: Cta, program: Any, index: int) -> None:
        self.world, self.cta, self.program, self.kernel, self.index = world, cta, program, program.kernel, index
        block = cta.launch.block
        linear = LANE.astype(np.int64) + 32 * index
        lanes = linear < cta.launch.threads
        self.thread_index = (linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1]))
        self.exited = ~lanes
        self.fragments = [Fragment(0, None if lanes.all() else lanes)]
        self.R: list[Lanes] = list(program.registers)
        self.loads: LoadsInFlight = program.loads
        self.done = False
        self.line = 0
        self.mask: Mask = None
        self.wake: Callable[[], bool] | None = None
        self.why: str | Callable[[], str] | None = None
        self.sleep = self.rest = 0
        self.poll: tuple[int, bytes] = (-1, b"")
        self.state: dict[Any, Any] = {}
        self.local: ByteStore | None = None
        self.order: LaneOrder = LaneOrder(f"{cta} warp {index}", self, world.race) if world.race else UNWATCHED
        self.agent = self.order.agents.agent

    def forget(self) -> None:
        self.wake = self.why = self.local = None
        self.R.clear()
        self.state.clear()
        del self.order

    def __repr__(self) -> str:
        return f"{self.cta} warp {self.index}"

    def local_memory(self) -> ByteStore:
        """The .local memory of the 32 lanes, one stride after the other."""
        if self.local is None:
            self.local = ByteStore(np.zeros(32 * self.kernel.local_stride, np.uint8), None)
        return self.local

    def lanes(self, mask: Mask) -> list[int]:
        return list(range(32)) if mask is None else mask.nonzero()[0].tolist()

    def first(self, mask: Mask) -> int:
        return 0 if mask is None else int(mask.argmax())

    def converged(self, mask: Mask) -> bool:
        """Whether all lanes that have not exited are here (for `.aligned` and full-mask `.sync` instructions)."""
        return mask is None or b"\x00" not in (mask | self.exited).tobytes()

    def block(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None, outcome: Outcome = BLOCK) -> Outcome:
        """Answer BLOCK, or PARK: `why` goes to the deadlock report; `wake` is a cheap test that says when to try again."""
        self.why, self.wake = why, wake
        return outcome

"""mbarrier objects: phase, pending arrivals and transaction bytes.

Source: PTX ISA, "mbarrier" ("Contents of the mbarrier object", "Phase Completion of the mbarrier object"). A phase completes when no
arrival is pending and the transaction count is zero; completion starts the next phase with the full arrival count.
"""

from __future__ import annotations

from .clock import Clock
from .cta import Cta, Warp
from .errors import SimError
from .memory import SMEM_RESERVED
from .sync import SCOPES, SyncPoint, in_scope

MAX_COUNT = (1 << 20) - 1
BYTES = 8


class Mbarrier:
    """One barrier object in the shared memory of `cta`.

    count, pending  arrivals expected per phase, and still missing in this one
    transactions    bytes expected minus bytes that arrived
    phase           number of completed phases
    point, done     what arrivals of the current phase, and of completed phases, released (race detector)
    checked         warps and lanes whose access was checked against the initialization
    """

    __slots__ = ("accesses", "agent", "checked", "count", "cta", "done", "offset", "pending", "phase", "point", "transactions")

    def __init__(self, cta: Cta, offset: int, count: int) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise SimError(f"mbarrier.init with count {count}: must be between 1 and {MAX_COUNT}")
        self.cta, self.offset = cta, offset
        self.count = self.pending = count
        self.transactions = self.phase = 0
        self.point, self.done = SyncPoint(), SyncPoint()
        self.checked: set[tuple[Warp, int]] = set()
        self.agent = -1  # the TMA engine behind this barrier, registered at its first load
        self.accesses = 0

    def __repr__(self) -> str:
        return f"mbarrier {self.cta} smem+{self.offset - SMEM_RESERVED}"

    def __str__(self) -> str:
        arrived = self.count - self.pending
        return f"{arrived}/{self.count} arrived, {self.transactions} transaction bytes missing, phase {self.phase}, parity {self.phase & 1}"

    def arrive(self, count: int, expected_bytes: int = 0) -> None:
        """Arrivals of threads or engines, after raising the transaction count by `expected_bytes`."""
        if count > self.pending:
            raise SimError(f"{self!r}: {count} arrivals but {self.pending} of {self.count} are pending: more arrivals than expected")
        self._add_transactions(expected_bytes)
        self.pending -= count
        self._check()

    def expect(self, count: int) -> None:
        self._add_transactions(count)

    def complete(self, count: int) -> None:
        """`complete_tx`: `count` bytes have arrived."""
        self._add_transactions(-count)
        self._check()

    def release(self, clock: Clock, place: Cta, scope: int) -> None:
        """Race detector: publish `clock` from `place` to whoever observes the end of this phase."""
        self.point.release(clock, place, scope)

    def left_over(self) -> str | None:
        """Text for a barrier that is in the middle of a phase, else None."""
        return f"{self!r} left mid-phase at exit ({self})" if self.pending != self.count or self.transactions else None

    def _add_transactions(self, count: int) -> None:
        self.transactions += count
        if abs(self.transactions) > MAX_COUNT:
            raise SimError(f"{self!r}: transaction count {self.transactions} is out of range (at most {MAX_COUNT})")

    def _check(self) -> None:
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.count
            if self.cta.world.race:
                self.done = self.point.copy()
            self.cta.world.progress += 1


def mbarrier_at(cta: Cta, offset: int) -> Mbarrier:
    """The barrier at a byte offset in the shared memory of `cta`; an error when there is none."""
    barrier = cta.mbarriers.get(offset)
    if barrier is None:
        raise SimError(f"no initialized mbarrier at {cta} smem+{offset - SMEM_RESERVED}")
    return barrier  # type: ignore[no-any-return]


def scope_of(parts: tuple[str, ...]) -> int:
    """Scope of an mbarrier operation.

    Without a qualifier the ISA says `.cta`; CUTLASS pipelines rely on unqualified remote arrives, so that case counts as `.cluster`
    here. An explicit qualifier is taken literally.
    """
    return next((SCOPES[part] for part in parts if part in SCOPES), SCOPES["cluster"])


def release_from_warp(barrier: Mbarrier, warp: Warp, scope: int, relaxed: bool, lanes: int) -> None:
    """Publish what arriving lanes have done; a relaxed arrive publishes what an earlier fence covers."""
    if relaxed:
        for level, clock in warp.order.fenced(lanes):
            barrier.release(clock, warp.cta, min(level, scope))
        for clock in warp.order.light_fences(lanes):
            barrier.release(clock, warp.cta, scope)
    else:
        barrier.release(warp.order.released(lanes), warp.cta, scope)


def acquire_into_warp(barrier: Mbarrier, warp: Warp, scope: int, relaxed: bool, lanes: int) -> None:
    """Let waiting lanes learn what the completed phases released; a relaxed wait takes effect at a later fence."""
    race = warp.world.race
    assert race is not None
    if relaxed:
        for (released, place), clock in barrier.done.released.items():
            if in_scope(released, place, warp.cta) and in_scope(scope, place, warp.cta):
                warp.order.put_off(barrier.cta, clock, lanes)
        return
    missed = barrier.done.acquire(warp.order, warp.cta, scope, lanes)
    if missed is not None:
        race.report("insufficient mbarrier scope", missed, "mbarrier", repr(barrier), 0, warp)


def finish_async_store(barrier: Mbarrier, size: int, clock: Clock | None) -> None:
    """A `complete_tx` that follows an asynchronous store: release at cluster scope in the CTA of the barrier."""
    if clock is not None:
        barrier.release(clock, barrier.cta, SCOPES["cluster"])
    barrier.complete(size)

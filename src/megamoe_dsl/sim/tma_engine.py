"""Asynchronous copies: async-groups, and their reads and writes of global and shared memory.

Source: PTX ISA, "Async-group mechanism". Loads are agents per mbarrier. A bulk store completes in two steps, reading its source and writing
its destination, by two agents per warp, because `wait_group.read` waits for the first only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunks import CHUNK, Chunks, GlobalRows
from .clock import Actor, Clock
from .cta import Cta, Warp, kept
from .errors import SimError
from .memory import B128, Bytes
from .operands import Combination
from .ops.mbarrier import Mbarrier
from .race import UNWATCHED


@dataclass(slots=True, eq=False)
class AsyncCopy:
    """One asynchronous operation. `clock` is what a waiter learns; `destination` the agent it must not learn from a `.read` wait."""

    clock: Clock
    destination: int | None = None
    work: Callable[[], None] | None = None  # what is done at once
    read_done: bool = False
    done: bool = False

    def perform(self) -> None:
        """Do the work now if it is not done (an arrive that tracks the copy overtakes its delay)."""
        if self.work and not self.done:
            self.work()
            self.read_done = self.done = True


class AsyncGroups:
    """The groups of one thread: operations (`AsyncCopy`; of wgmma others) not committed yet, and committed groups, oldest first."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.committed: deque[list[Any]] = deque()
        self.reads_waited = 0

    def commit(self) -> None:
        self.committed.append(self.open)
        self.open = []

    def so_far(self) -> list[AsyncCopy]:
        """All operations that the thread has not waited for. Of an open group those that have completed become one."""
        done = [copy for copy in self.open if copy.done]
        if len(done) > 1:
            together = AsyncCopy(done[0].clock.copy(), read_done=True, done=True)
            for copy in done[1:]:
                together.clock.join(copy.clock)
            self.open = [together, *(copy for copy in self.open if not copy.done)]
        return [copy for group in (*self.committed, self.open) for copy in group]

    def ready(self, keep: int, read: bool = False) -> bool:
        """Whether all but the `keep` most recent groups are done, or have read their sources."""
        older = list(self.committed)[: max(0, len(self.committed) - keep)]
        return all(copy.read_done if read else copy.done for group in older for copy in group)

    def retire(self, keep: int, read: bool) -> list[Clock]:
        """The thread has waited: what it learns of what the groups did. Only a full wait forgets them."""
        count = max(0, len(self.committed) - keep)
        if read:
            groups = list(self.committed)[self.reads_waited : count]
            self.reads_waited = max(self.reads_waited, count)
            learned = [(copy.clock.copy(), copy.destination) for group in groups for copy in group]
            for clock, destination in learned:
                if destination is not None:
                    clock.set(destination, 0)
            return [clock for clock, _ in learned]
        self.reads_waited = max(0, self.reads_waited - count)
        groups = [self.committed.popleft() for _ in range(count)]
        return [copy.clock for group in groups for copy in group]


def groups_of(w: Warp, kind: str, lane: int) -> AsyncGroups:
    """The groups of a lane; `kind` is ``bulk`` or ``cp.async``, which count separately."""
    if kind == "bulk":
        w.cta.exit_checks["bulk groups"] = _exit_check
    return kept(w, (kind, lane), lambda w: AsyncGroups())


def _exit_check(cta: Cta) -> None:
    for warp in cta.warps:
        for key, groups in warp.state.items():
            if isinstance(groups, AsyncGroups) and key[0] == "bulk":
                if groups.open:
                    cta.world.warnings[f"{warp}: {len(groups.open)} bulk stores were never committed to a group"] += 1
                elif unread := sum(map(bool, list(groups.committed)[groups.reads_waited :])):
                    cta.world.warnings[f"{warp}: exit without wait_group for {unread} bulk groups that read shared memory"] += 1


TMA_STORE = "TMA store"


def load_actor(w: Warp, lane: int) -> Callable[[Mbarrier], Actor]:
    """Returns a function that makes the actor of a barrier's next load, with what the lane knows now."""
    race, line, known = w.world.race, w.line, w.order.snapshot(w.order.whole(1 << lane))

    def actor(barrier: Mbarrier) -> Actor:
        if not race:
            return UNWATCHED  # type: ignore[no-any-return]
        if barrier.agent is None:
            barrier.agent = race.agent(f"TMA load for {barrier!r}", barrier.cta)
        barrier.accesses += 1
        clock = known.copy()
        clock.fit(race.width)
        clock.set(barrier.agent, barrier.accesses)
        return Actor(barrier.agent, clock, line)

    return actor


def read_global_rows(cta: Cta, rows: GlobalRows, actor: Actor) -> Bytes:
    """Their bytes, shaped (rows, width), for a CTA."""
    world = cta.world
    allocation, offset = world.memory.find(rows.low, rows.end - rows.low)
    world.crossed += rows.num_bytes if cta.rank != allocation.rank else 0
    if allocation.valid is not None and not (valid := rows.of(allocation.valid, offset)).all():
        row, column = divmod(int(np.argmin(valid)), rows.width)
        raise SimError(f"read of uninitialized {allocation.where(offset + int(rows.steps[row]) + column)}")
    if actor:
        world.race.read_bytes(allocation, *rows.places(offset), actor)
    return np.array(rows.of(allocation.data, offset))


def write_global_rows(cta: Cta, rows: GlobalRows, values: Bytes, reduce: Combination | None, actor: Actor) -> None:
    """Store (rows, width) bytes of a CTA, or combine them with what is there: then every element is one relaxed atomic."""
    world = cta.world
    allocation, offset = world.memory.writable(rows.low, rows.end - rows.low)
    world.crossed += rows.num_bytes if cta.rank != allocation.rank else 0
    if reduce is None:
        if actor:
            world.race.write_bytes(allocation, *rows.places(offset), actor)
        rows.store(allocation.data, offset, values)
        if allocation.valid is not None:
            rows.store(allocation.valid, offset, True)
        return
    world.race.strong_bytes(allocation, *rows.places(offset), actor)
    if allocation.valid is not None and not rows.of(allocation.valid, offset).all():
        raise SimError(f"reduction into uninitialized global memory {allocation}")
    old = np.ascontiguousarray(rows.of(allocation.data, offset))
    rows.store(allocation.data, offset, reduce(old, np.ascontiguousarray(values)))


def read_shared_chunks(cta: Cta, chunks: Chunks, what: str, actor: Actor | None) -> NDArray[np.uint8]:
    """The bytes of the chunks, shaped (chunks, 16). Uninitialised ones are an error, of a store a warning where the run says so."""
    shared = cta.shared
    shared.check(chunks.low, chunks.end)
    if chunks not in shared.initialized:
        if (bad := shared.first_uninitialized(chunks.numbers, CHUNK)) is None:
            shared.initialized.add(chunks)
        else:
            text = f"{what} reads uninitialized {shared.where(bad)}"
            if what != TMA_STORE or not cta.world.assumptions.store_uninitialized:
                raise SimError(text)
            cta.world.warnings[text] += 1
    if actor:
        cta.world.race.read_bytes(shared, chunks, CHUNK, actor)
    return shared.rows(CHUNK, 1).take(chunks.numbers).view(np.uint8).reshape(-1, CHUNK)  # type: ignore[no-any-return]


def write_shared_chunks(cta: Cta, chunks: Chunks, values: Bytes, actor: Actor) -> None:
    """Store bytes, in this order, as the chunks."""
    shared = cta.shared
    shared.check(chunks.low, chunks.end)
    cta.world.race.write_bytes(shared, chunks, CHUNK, actor)
    shared.rows(CHUNK, 1)[chunks.numbers] = np.ascontiguousarray(values).reshape(-1).view(B128)
    if chunks not in shared.initialized:
        shared.mark(chunks.numbers, CHUNK)
        shared.initialized.add(chunks)

"""Asynchronous operations that complete in order: async-groups and pipes.

Source: PTX ISA, "Async-group mechanism". A bulk store completes in two steps, reading its source and writing its destination;
`wait_group.read` waits for the first only.
"""

from __future__ import annotations

from collections import deque

from .clock import Clock
from .cta import Cta, Warp
from .interfaces import Action, Origin, WorldLike


class AsyncCopy:
    """One asynchronous operation. `clock` is what a waiter learns; `destination` the agent it must not learn from a `.read` wait."""

    __slots__ = ("clock", "destination", "done", "read_done")

    def __init__(self, clock: Clock | None, destination: int = -1) -> None:
        self.clock, self.destination = clock, destination
        self.read_done = self.done = False

    def perform(self) -> None:
        """Finish now if it has not (an arrive that tracks the copy overtakes its delay)."""

    def source_clock(self) -> Clock | None:
        """What a waiter for the source read learns."""
        if self.clock is None:
            return None
        clock = self.clock.copy()
        if self.destination >= 0:
            clock.set(self.destination, 0)
        return clock


def _completed(copies: list[AsyncCopy]) -> AsyncCopy:
    """One operation in the place of several that have completed."""
    clocks = [copy.clock for copy in copies if copy.clock is not None]
    clock = clocks[0].copy() if clocks else None
    for other in clocks[1:]:
        clock.join(other)  # type: ignore[union-attr]
    one = AsyncCopy(clock)
    one.read_done = one.done = True
    return one


class AsyncGroups:
    """The groups of one thread: operations not committed yet, and committed groups, oldest first."""

    def __init__(self) -> None:
        self.open: list[AsyncCopy] = []
        self.committed: deque[list[AsyncCopy]] = deque()
        self.reads_waited = 0

    def commit(self) -> None:
        """Close the open group (it may be empty)."""
        self.committed.append(self.open)
        self.open = []

    def so_far(self) -> list[AsyncCopy]:
        """All operations that the thread has not waited for. Threads whose copies arrive at mbarriers never close a group: of the open one
        those that have completed become one."""
        done = [copy for copy in self.open if copy.done]
        if len(done) > 1:
            self.open = [_completed(done), *(copy for copy in self.open if not copy.done)]
        return [copy for group in (*self.committed, self.open) for copy in group]

    def ready(self, keep: int, read: bool) -> bool:
        """Whether all but the `keep` most recent groups have completed (or have read their sources)."""
        older = list(self.committed)[: max(0, len(self.committed) - keep)]
        return all(copy.read_done if read else copy.done for group in older for copy in group)

    def retire(self, keep: int, read: bool) -> list[Clock]:
        """The thread has waited: what it learns of what the groups did. Only a full wait forgets them."""
        count = max(0, len(self.committed) - keep)
        if read:
            groups = list(self.committed)[self.reads_waited : count]
            self.reads_waited = max(self.reads_waited, count)
            return [clock for group in groups for copy in group if (clock := copy.source_clock()) is not None]
        self.reads_waited = max(0, self.reads_waited - count)
        groups = [self.committed.popleft() for _ in range(count)]
        return [copy.clock for group in groups for copy in group if copy.clock is not None]

    def left_over(self) -> str | None:
        """What is wrong when the thread exits now, or None."""
        if self.open:
            return f"{len(self.open)} bulk stores were never committed to a group"
        unread = [group for group in list(self.committed)[self.reads_waited :] if group]
        return f"exit without wait_group for {len(unread)} bulk groups that read shared memory" if unread else None


def groups_of(w: Warp, kind: str, lane: int) -> AsyncGroups:
    """The groups of a lane; `kind` is ``bulk`` or ``cp.async``, which count separately."""
    groups = w.state.get((kind, lane))
    if groups is None:
        groups = w.state[(kind, lane)] = AsyncGroups()
        if kind == "bulk" and not w.cta.state.setdefault("bulk exit check", False):
            w.cta.state["bulk exit check"] = True
            w.cta.exit_checks.append(lambda: _exit_check(w.cta))
    return groups  # type: ignore[no-any-return]


def _exit_check(cta: Cta) -> None:
    for warp in cta.warps:
        for key, groups in warp.state.items():
            if isinstance(groups, AsyncGroups) and key[0] == "bulk" and (text := groups.left_over()):
                cta.world.warnings[f"{warp}: {text}"] += 1


class Pipe:
    """Actions that run in the order they were pushed, at random times (the tensor pipe of a CTA)."""

    def __init__(self, world: WorldLike) -> None:
        self.world, self.actions = world, deque[tuple[Origin, Action]]()
        world.pipes.append(self.actions)

    def push(self, action: Action, origin: Origin) -> None:
        """Append an action; `origin` names it in errors."""
        self.world.progress += 1
        self.actions.append((origin, action))

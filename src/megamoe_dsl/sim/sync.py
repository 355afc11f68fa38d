"""Places and scopes, and what synchronizes there: flags, mbarriers and named barriers.

Source: PTX ISA, "Memory Consistency Model" (scopes, release and acquire), `bar`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .clock import Clock

Place = Any
"""A `Cta`: threads of one place share its memory, places of one cluster and of one rank share scopes; PTX lines are of its kernel."""
SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}


def in_scope(scope: int, first: Place, second: Place) -> bool:
    """Whether threads of both CTAs are inside `scope`."""
    if scope == 0:
        return first is second
    if scope == 1:
        return first.cluster is second.cluster
    return scope == 3 or first.rank == second.rank


@dataclass(slots=True, eq=False)
class SyncPoint:
    """Clocks released at one flag, counter or barrier, by (scope, releasing CTA)."""

    released: dict[tuple[int, Place], Clock] = field(default_factory=dict)
    version: int = 0

    def clear(self) -> None:
        """A plain store replaced the value: what earlier releases published is no longer observed through it."""
        if self.released:
            self.released = {}
            self.version += 1

    def release(self, clock: Clock, cta: Place, scope: int) -> None:
        if not clock:  # nobody watches
            return
        if (scope, cta) not in self.released:
            self.released[scope, cta] = clock.copy()
        self.released[scope, cta].join(clock)
        self.version += 1

    def publish(self, order: Any, cta: Place, scope: int, lanes: int, relaxed: bool) -> None:
        """A write of lanes; a relaxed one after a fence makes a release pattern, at the narrower of the two scopes."""
        told = [(min(level, scope), clock) for level, clock in order.fenced(lanes)] if relaxed else [(scope, order.released(lanes))]
        for level, clock in told:
            self.release(clock, cta, level)

    def put_off(self, order: Any, cta: Place, scope: int, lanes: int, by: Place | None = None) -> None:
        """A relaxed read of lanes: they learn at a later fence what they observe here, from who told it or, if given, from `by`."""
        for (released, place), clock in self.released.items():
            if in_scope(released, place, cta) and in_scope(scope, place, cta):
                order.put_off(by or place, clock, lanes)

    def copy(self) -> SyncPoint:
        """A snapshot (for the completed phase of a barrier)."""
        return SyncPoint({key: clock.copy() for key, clock in self.released.items()})

    def acquire(self, order: Any, cta: Place, scope: int, lanes: int) -> Place | None:
        """Lanes of a warp of `cta` learn all that they may observe at `scope`; returns a CTA whose release was out of scope, if any."""
        missed = None
        for (released_scope, place), clock in self.released.items():
            if in_scope(released_scope, place, cta) and in_scope(scope, place, cta):
                order.learn(clock, lanes)
            elif not order.known(lanes).knows(clock):
                missed = place
        return missed


@dataclass(slots=True, eq=False)
class BarrierState:
    """A barrier of a CTA or of a cluster."""

    arrived: int = 0
    expected: int = 0
    generation: int = 0
    whole: bool = False  # no thread count: all warps of the CTA that have not exited
    done: Clock | None = None  # what arrivals of the last generation told
    votes: list[Any] = field(default_factory=list)  # and their predicates
    _clock: Clock | None = None
    _votes: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.arrived}/{self.expected} threads arrived, generation {self.generation}"

    def arrive(self, threads: int, told: Iterable[Clock], votes: Any = ()) -> None:
        self.arrived += threads
        self._votes += list(votes)
        for clock in told:
            self._clock = self._clock or clock.copy()
            self._clock.join(clock)
        self.expect(self.expected)

    def expect(self, threads: int) -> None:
        """How many must be here for the next generation to start, which it does when they are."""
        self.expected = threads
        if self.arrived and self.arrived == threads:
            self.arrived, self.generation = 0, self.generation + 1
            self.done, self.votes, self._clock, self._votes = self._clock, self._votes, None, []

"""Who makes an access, and where: what the race detector asks of warps, engines and CTAs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .clock import Clock
from .memory import SharedMemory
from .parser import ParsedKernel


class Place(Protocol):
    """A CTA: threads of one place share its memory, places of one cluster and of one rank share scopes."""

    rank: int
    shared: SharedMemory

    @property
    def cluster(self) -> object:
        """Equal for the CTAs of one cluster."""
        ...

    @property
    def kernel(self) -> ParsedKernel:
        """What it runs; PTX lines of its agents are lines of this kernel."""
        ...


class Accessor(Protocol):
    """Who makes an access."""

    agent: int
    clock: Clock
    line: int
    asynchronous: bool


class Thread(Accessor, Protocol):
    """A warp: an accessor that also synchronises."""

    state: dict[Any, Any]
    fences: dict[int, Clock]
    pending: dict[Place, Clock]
    seen: dict[Any, int]

    @property
    def cta(self) -> Place:
        """Where it runs."""
        ...


@dataclass(slots=True)
class Actor:
    """An engine as accessor. `asynchronous` means the async proxy."""

    agent: int
    clock: Clock
    line: int
    asynchronous: bool = True

"""Where threads run, as far as the race detector asks."""

from __future__ import annotations

from typing import Protocol

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

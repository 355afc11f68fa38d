"""A launch in its rank's stream."""

from __future__ import annotations

from collections.abc import Iterable

from .clock import Clock
from .launch import Launch
from .memory import ByteStore
from .race import Race


class Grid:
    """A launch with its program and parameters, the launch before it in the stream, and how many of its clusters have not ended."""

    def __init__(self, launch: Launch, before: Grid | None) -> None:
        self.launch, self.before = launch, before
        self.program = launch.check()
        self.parameters = ByteStore(self.program.pack(launch.args), None)
        self.unfinished = 0
        self.end: Clock | None = None  # what the next launch of the stream knows

    def left(self, clocks: Iterable[Clock], race: Race | None) -> None:
        """A cluster has ended; `clocks` are those of its warps."""
        self.unfinished -= 1
        if race:
            self.end = self.end or race.clock()
            for clock in clocks:
                self.end.join(clock)
            if not self.unfinished:
                race.complete(self.end, self.launch.rank)

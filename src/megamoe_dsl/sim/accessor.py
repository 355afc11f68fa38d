"""Who makes an access: what the race detector asks of warps and engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .access_record import CODE_SHIFT, pack
from .clock import Clock
from .lane_order import LaneOrder
from .sync import Place


class Thread(Protocol):
    """A warp: an accessor that also synchronizes."""

    agent: int
    line: int
    state: dict[Any, Any]

    @property
    def order(self) -> LaneOrder: ...

    @property
    def cta(self) -> Place: ...


@dataclass(slots=True)
class Actor:
    """An engine as accessor. `asynchronous` means the async proxy; `code` is the lanes that it works for, if it tells them apart."""

    agent: int
    clock: Clock
    line: int
    asynchronous: bool = True
    code: int = 0
    record: int = -1

    def stamp(self) -> int:
        """The record of its accesses, whose time is the clock's at the first of them."""
        if self.record < 0:
            self.record = pack(self.agent, self.clock.at(self.agent), self.line, self.asynchronous) | self.code << CODE_SHIFT
        return self.record


Accessor = Thread | Actor

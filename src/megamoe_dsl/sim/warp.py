"""A warp: registers, fragments, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .fragment import BLOCK, PARK, Fragment, Outcome
from .interfaces import CtaLike, WorldLike
from .lane_order import LaneOrder
from .lanes import LANE, Lanes, Mask
from .memory import ByteStore
from .program import Program


class Warp:
    """32 lanes. `R` holds the registers; `state` belongs to the instruction families."""

    __slots__ = (
        "R", "agent", "cta", "done", "exited", "fragments", "index", "kernel", "line", "local", "mask", "order", "poll", "program",
        "rest", "sleep", "state", "thread_index", "wake", "why", "world",
    )  # fmt: skip

    def __init__(self, world: WorldLike, cta: CtaLike, program: Program, index: int) -> None:
        self.world, self.cta, self.program, self.kernel, self.index = world, cta, program, program.kernel, index
        block = cta.launch.block
        linear = LANE.astype(np.int64) + 32 * index
        lanes = linear < cta.launch.threads
        self.thread_index = (linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1]))
        self.exited = ~lanes
        self.fragments = [Fragment(0, None if lanes.all() else lanes)]
        self.R: list[Lanes] = program.fresh_registers()
        self.done = False
        self.line = 0
        self.mask: Mask = None
        self.wake: Callable[[], bool] | None = None
        self.why: str | Callable[[], str] | None = None
        self.sleep = self.rest = 0
        self.poll: tuple[int, bytes] = (-1, b"")
        self.state: dict[Any, Any] = {}
        self.local: ByteStore | None = None
        self.agent = 0
        self.order: LaneOrder
        if world.race:
            self.order = world.race.order(f"{cta} warp {index}", self)
            self.agent = self.order.agents.agent

    def forget(self) -> None:
        """Give back what it holds: it has ended, or its run has."""
        self.wake = self.why = self.local = None
        self.R.clear()
        self.state.clear()
        if self.world.race:
            del self.order

    @property
    def in_flight(self) -> Mapping[int, frozenset[int]]:
        """By PTX line: kinds of loads whose value may not have been used yet."""
        return self.program.loads.by_line

    @property
    def kinds_of_loads(self) -> Mapping[int, int]:
        """By PTX line: the kind of a load that may be among them."""
        return self.program.loads.kinds

    def __repr__(self) -> str:
        return f"{self.cta} warp {self.index}"

    def local_memory(self) -> ByteStore:
        """The .local memory of the 32 lanes, one stride after the other."""
        if self.local is None:
            self.local = ByteStore(np.zeros(32 * self.kernel.local_stride, np.uint8), None)
        return self.local

    def lanes(self, mask: Mask) -> list[int]:
        """The lanes of a mask."""
        return list(range(32)) if mask is None else mask.nonzero()[0].tolist()

    def first(self, mask: Mask) -> int:
        """The lowest lane of a mask."""
        return 0 if mask is None else int(mask.argmax())

    def converged(self, mask: Mask) -> bool:
        """Whether all lanes that have not exited are here (for `.aligned` and full-mask `.sync` instructions)."""
        return mask is None or b"\x00" not in (mask | self.exited).tobytes()

    def park(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome:
        """Answer PARK: like `block`, for lanes that have arrived and now wait."""
        self.block(why, wake)
        return PARK

    def block(self, why: str | Callable[[], str], wake: Callable[[], bool] | None = None) -> Outcome:
        """Answer BLOCK: `why` goes to the deadlock report; `wake` is a cheap test that says when to try again."""
        self.why, self.wake = why, wake
        return BLOCK

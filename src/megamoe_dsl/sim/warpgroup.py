"""wgmma as its warpgroup sees it: four warps issue an operation together, and it is done for all of them at once.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". An operation executes after all four warps have
issued it, in order. A wait of one warp therefore covers what the operation read for the others too. Each warp answers for its own 16
rows of A, with what it knew at issue; of B, which all of them use, only what all four knew counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from .accessor import Actor
from .clock import Clock
from .errors import SimError
from .interfaces import CtaLike, Origin, WarpLike
from .pipe import Pipe
from .smem_descriptor import SmemDescriptor
from .umma import Bytes
from .wgmma_fragment import Accumulator

WARPS = 4


@dataclass(slots=True)
class Part:
    """One warp's part: A as a descriptor or as the bytes of its 16 rows, and what the warp knew."""

    accumulator: Accumulator
    accumulate: bool
    a: SmemDescriptor | Bytes
    b: SmemDescriptor
    clock: Clock | None


@dataclass
class Operation:
    """One wgmma.mma_async of a warpgroup. `number` counts those of the warpgroup from 1."""

    number: int
    line: int
    parts: dict[int, Part] = field(default_factory=dict)
    done: bool = False

    def add(self, warp: WarpLike, part: Part) -> None:
        """A warp issues it.

        Raises:
            SimError: the warp issues something else than the others.
        """
        first = next(iter(self.parts.values()), part)
        if warp.line != self.line:
            raise SimError(f"wgmma.mma_async number {self.number} of the warpgroup is at PTX line {self.line} for its other warps")
        if (part.b, part.accumulate) != (first.b, first.accumulate):
            raise SimError("the warps of a warpgroup issue a wgmma.mma_async with different descriptors or predicates")
        self.parts[warp.index % WARPS] = part


class Warpgroup:
    """Four warps of a CTA. `agent` stands for their operations in the race detector."""

    def __init__(self, cta: CtaLike, index: int) -> None:
        if WARPS * (index + 1) > len(cta.warps):
            raise SimError(f"wgmma in warpgroup {index} of a CTA of {len(cta.warps)} warps: a warpgroup has four")
        self.cta, self.name = cta, f"{cta} warpgroup {index}"
        self.pipe = Pipe(cta.world)
        self.operations: dict[int, Operation] = {}  # not issued by all warps yet
        self.agent = cta.world.race.agent(f"{self.name} wgmma", cta) if cta.world.race else -1
        self._known: list[Clock] = []  # what the warps knew when they issued the last operation, and with what that did
        self._acting: list[Clock] = []
        cta.exit_checks.append(self._exit_check)

    def issue(self, warp: WarpLike, number: int, part: Part, execute: Callable[[Operation], None], origin: Origin) -> Operation:
        """A warp issues its operation of that number; the last of the four sends it off."""
        operation = self.operations.get(number)
        if operation is None:
            operation = self.operations[number] = Operation(number, warp.line)
        operation.add(warp, part)
        if len(operation.parts) == WARPS:
            del self.operations[number]
            self.pipe.push(lambda: execute(operation), origin)
        return operation

    def actors(self, operation: Operation) -> tuple[list[Actor], Actor] | None:
        """Who reads each warp's rows of A, and who reads B; None without the race detector."""
        race = self.cta.world.race
        clocks = [part.clock for _, part in sorted(operation.parts.items()) if part.clock is not None]
        if race is None or len(clocks) != WARPS:
            return None
        if [id(clock.rows) for clock in clocks] != [id(clock.rows) for clock in self._known]:
            self._known, self._acting = clocks, [clock.copy() for clock in clocks]
            for clock in self._acting:
                clock.fit(race.width)
            self._acting.append(Clock(reduce(np.minimum, (clock.rows for clock in self._acting))))
        for clock in self._acting:
            clock.set(self.agent, operation.number)
        *own, common = [Actor(self.agent, clock, operation.line) for clock in self._acting]
        return own, common

    def learn(self, warp: WarpLike, operation: Operation) -> None:
        """A warp has waited for an operation."""
        if self.cta.world.race:
            warp.order.know(self.agent, operation.number)

    def _exit_check(self) -> None:
        for operation in self.operations.values():
            raise SimError(f"{self.name}: wgmma.mma_async at PTX line {operation.line} issued by {len(operation.parts)} of {WARPS} warps")


def warpgroup(w: WarpLike) -> Warpgroup:
    """The warpgroup of a warp, created at first use."""
    index = w.index // WARPS
    group = w.cta.state.get(("warpgroup", index))
    if group is None:
        group = w.cta.state["warpgroup", index] = Warpgroup(w.cta, index)
    return group  # type: ignore[no-any-return]

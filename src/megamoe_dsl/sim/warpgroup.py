"""wgmma as its warpgroup sees it: four warps issue an operation together, and it is done for all of them at once.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". An operation executes after all four warps have
issued it, in order. A wait of one warp therefore covers what the operation read for the others too. Each warp answers for its own 16
rows of A, with what it knew at issue; of B, which all of them use, only what all four knew counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np

from .accessor import Actor
from .async_groups import Pipe
from .clock import Clock
from .cta import Cta, Warp
from .errors import SimError
from .interfaces import Origin
from .memory import POISON
from .smem_descriptor import SmemDescriptor
from .umma import Bytes
from .wgmma_fragment import Accumulator, to_matrix, to_registers

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

    def add(self, warp: Warp, part: Part) -> None:
        """A warp issues it.  Raises SimError when the warp issues something else than the others."""
        first = next(iter(self.parts.values()), part)
        if warp.line != self.line:
            raise SimError(f"wgmma.mma_async number {self.number} of the warpgroup is at PTX line {self.line} for its other warps")
        if (part.b, part.accumulate) != (first.b, first.accumulate):
            raise SimError("the warps of a warpgroup issue a wgmma.mma_async with different descriptors or predicates")
        self.parts[warp.index % WARPS] = part


class Warpgroup:
    """Four warps of a CTA. `agent` stands for their operations in the race detector."""

    def __init__(self, cta: Cta, index: int) -> None:
        if WARPS * (index + 1) > len(cta.warps):
            raise SimError(f"wgmma in warpgroup {index} of a CTA of {len(cta.warps)} warps: a warpgroup has four")
        self.cta, self.name = cta, f"{cta} warpgroup {index}"
        self.pipe = Pipe(cta.world)
        self.operations: dict[int, Operation] = {}  # not issued by all warps yet
        self.agent = cta.world.race.agent(f"{self.name} wgmma", cta) if cta.world.race else -1
        self._known: list[Clock] = []  # what the warps knew when they issued the last operation, and with what that did
        self._acting: list[Clock] = []
        cta.exit_checks.append(self._exit_check)

    def issue(self, warp: Warp, number: int, part: Part, execute: Callable[[Operation], None], origin: Origin) -> Operation:
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

    def learn(self, warp: Warp, operation: Operation) -> None:
        """A warp has waited for an operation."""
        if self.cta.world.race:
            warp.order.know(self.agent, operation.number)

    def _exit_check(self) -> None:
        for operation in self.operations.values():
            raise SimError(f"{self.name}: wgmma.mma_async at PTX line {operation.line} issued by {len(operation.parts)} of {WARPS} warps")


def warpgroup(w: Warp) -> Warpgroup:
    """The warpgroup of a warp, created at first use."""
    index = w.index // WARPS
    group = w.cta.state.get(("warpgroup", index))
    if group is None:
        group = w.cta.state["warpgroup", index] = Warpgroup(w.cta, index)
    return group  # type: ignore[no-any-return]


@dataclass
class WgmmaThread:
    """State of one warp. `issued` counts its wgmma.mma_async."""

    warp: Warp
    group: Warpgroup
    open: list[Operation] = field(default_factory=list)
    groups: deque[list[Operation]] = field(default_factory=deque)
    in_flight: dict[int, Accumulator] = field(default_factory=dict)
    delivered: dict[int, Any] = field(default_factory=dict)
    fenced: bool = False
    issued: int = 0

    def accumulate_into(self, registers: tuple[int, ...], needs_value: bool, dtype: type) -> Accumulator:
        """The accumulator of an instruction that is being issued; its registers hold poison from now on.

        Raises SimError when the registers were touched and no `wgmma.fence` followed, or overlap another accumulator in flight.
        """
        owner = self.in_flight.get(registers[0])
        if owner is not None and owner.registers == registers:
            return owner
        if any(r in self.in_flight for r in registers):
            raise SimError("wgmma accumulator overlaps one of another shape that is in flight")
        file = self.warp.R
        if not self.fenced and any(file[r] is not self.delivered.get(r) for r in registers):
            raise SimError("wgmma.mma_async on registers that were written, or never used by wgmma, without wgmma.fence")
        accumulator = Accumulator(registers, to_matrix([file[r] for r in registers], dtype) if needs_value else None)
        for r in registers:
            self.in_flight[r] = accumulator
            file[r] = POISON[file[r].dtype.type]
        return accumulator

    def ready(self, keep: int) -> bool:
        """Whether all but the `keep` most recent groups are done."""
        older = max(0, len(self.groups) - keep)
        return all(operation.done for group in islice(self.groups, older) for operation in group)

    def retire(self, keep: int) -> None:
        """The warp has waited: deliver accumulators that nothing uses any more, learn what was read."""
        last: Operation | None = None
        for _ in range(max(0, len(self.groups) - keep)):
            for last in self.groups.popleft():
                accumulator = last.parts[self.warp.index % WARPS].accumulator
                accumulator.pending -= 1
                if accumulator.pending == 0:
                    self._deliver(accumulator)
        if last is not None:  # those before it are done, too
            self.group.learn(self.warp, last)
        self.fenced = False

    def _deliver(self, accumulator: Accumulator) -> None:
        assert accumulator.values is not None
        file = self.warp.R
        for r, row in zip(accumulator.registers, to_registers(accumulator.values), strict=True):
            poison = file[r]
            if poison is not POISON.get(poison.dtype.type):
                raise SimError("an accumulator register was written while wgmma was in flight")
            file[r] = self.delivered[r] = row.view(poison.dtype)
            del self.in_flight[r]


def wgmma_thread(w: Warp) -> WgmmaThread:
    """The wgmma side of a warp, created at first use."""
    thread = w.state.get("wgmma")
    if thread is None:
        thread = w.state["wgmma"] = WgmmaThread(w, warpgroup(w))
    return thread  # type: ignore[no-any-return]

"""Waits on global memory.  A watchdog turns a wait that never ends into a trap, and leaves a record (layouts/records.py)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..layouts.records import RECORD
from .memory import load_acquire_u32, load_acquire_u64
from .ptx import emit

wait_for_launches_before = partial(emit, "griddepcontrol.wait;")
"""Until the launches before this one in the stream have ended and what they wrote is there: for one that may begin before (PTX ISA,
    griddepcontrol).  Launches before those have ended, too, as each of them waits itself."""
let_next_launch_begin = partial(emit, "griddepcontrol.launch_dependents;")
"""The next launch of the stream may begin where there is room; it waits for this one's end before it reads anything."""


@dataclass(frozen=True)
class Watchdog:
    """Where to write the record, after how many nanoseconds, and who is waiting."""

    record: Int64
    limit_ns: Int64
    rank: Int32

    def write(self, name: str, value: Any, index: int = 0) -> None:
        emit("st.relaxed.sys.global.b32 [{}], {};", RECORD.address(self.record, name, index), value)

    def trip(self, where: int, detail: Any, expected: Any, observed: Any) -> None:
        """Writes the record and traps.  `wait` is written last: a reader that finds it knows that the other words are there."""
        self.write("rank", self.rank)
        self.write("sm", cute.arch.block_idx()[0])
        self.write("detail", detail)
        for name, value in (("expected", expected), ("observed", observed)):
            self.write(name, Int32(value))
            self.write(name, Int32(Int64(value) >> 32), 1)
        emit("fence.acq_rel.sys;")
        self.write("wait", where)
        emit("fence.acq_rel.sys;")
        emit("trap;")


@dataclass(frozen=True)
class Equals32:
    """Condition: a 32-bit counter equals `target` (acquire)."""

    address: Int64
    target: Int32
    scope: cutlass.Constexpr[str]

    def read(self) -> Any:
        return load_acquire_u32(self.address, self.scope)

    def met(self, value: Any) -> Any:
        return value == self.target


@dataclass(frozen=True)
class Reached32(Equals32):
    """Condition: a 32-bit counter is at least `target` (acquire)."""

    def met(self, value: Any) -> Any:
        return value - self.target >= 0


@dataclass(frozen=True)
class Equals64(Equals32):
    """Condition: a 64-bit counter equals `target` (acquire)."""

    target: Int64  # type: ignore[assignment]

    def read(self) -> Any:
        return load_acquire_u64(self.address, self.scope)


@dataclass(frozen=True)
class HighWordGrewBy:
    """A 64-bit counter has grown, since it was `before`, by an amount whose high word is `target` (acquire, system scope)."""

    address: Int64
    before: Int64
    target: Int32

    def read(self) -> Any:
        return load_acquire_u64(self.address, "sys") - self.before

    def met(self, value: Any) -> Any:
        return Int32(Int64(value) >> 32) == self.target


@cute.jit
def spin(condition, watchdog: Watchdog, where: cutlass.Constexpr[IntEnum], detail: Int32):
    """Polls until the condition holds and returns the value that met it.  Call it from whole warps or from single threads alike."""
    value = condition.read()
    if not condition.met(value):
        start = cute.arch.globaltimer()
        while not condition.met(value):
            if cute.arch.globaltimer() - start > watchdog.limit_ns:
                watchdog.trip(int(where), detail, condition.target, value)
            value = condition.read()
    return value

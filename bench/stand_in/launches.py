"""What a program's launches run on: the memory that it has shown, and the record of what the simulator saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from megamoe_dsl.sim import Assumptions, Finding, GlobalMemory, Launch, SimError, Simulator, agents_needed
from megamoe_dsl.sim.clock import MAX_AGENTS
from megamoe_dsl.sim.host.arrays import ByteSpan, bytes_of


@dataclass
class Record:
    """What all launches of a program came to; findings by kind, place and lines."""

    launches: int = 0
    instructions: int = 0
    seconds: float = 0.0
    unchecked: int = 0  # launches too large for the race detector
    kernels: list[str] = field(default_factory=list)
    findings: dict[tuple[Any, ...], Finding] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass
class Launches:
    """Runs every launch at once.  `show` makes memory visible to kernels.

    A kernel that uses results of tcgen05.ld before any wait gets a warning, and runs as if it waited; so does one that loads or stores
    shared memory that nobody wrote, as kernels do with rows of padding.
    """

    seed: int = 0
    races: bool = True
    resident: int | None = None
    assumptions: Assumptions = field(default_factory=Assumptions)
    record: Record = field(default_factory=Record)
    _spans: dict[int, tuple[int, Callable[[], bool]]] = field(default_factory=dict)

    def show(self, start: int, size: int, gone: Callable[[], bool]) -> None:
        """`size` bytes from `start` may be touched by kernels, until they are `gone`."""
        if size:
            self._spans[start] = size, gone

    def take(self, launch: Launch) -> None:
        """Simulate a launch.  Raises SimError, which the record keeps."""
        self.take_all([launch])

    def take_all(self, launches: list[Launch]) -> None:
        """Simulate launches together.  Raises as `take`."""
        record = self.record
        races = self.races and agents_needed(launches) <= MAX_AGENTS // 2
        began = time.perf_counter()
        programs = [one.program for one in launches if one.program]
        unwaited = [text for one in dict.fromkeys(programs) for text in one.binder.unwaited]
        for text in unwaited:
            record.warnings[text] = record.warnings.get(text, 0) + 1
        simulator = Simulator(
            None,
            self._memory(),
            self.seed,
            races,
            resident=self.resident,
            assumptions=replace(self.assumptions, tensor_waits=bool(unwaited), store_uninitialized=True, load_uninitialized=True),
        )
        try:
            report = simulator.run(launches)
        except SimError as error:
            record.error = record.error or f"{type(error).__name__}: {error}"
            raise
        finally:
            record.seconds += time.perf_counter() - began
        names = dict.fromkeys(one.kernel.name for one in programs)
        name = ", ".join(names)
        record.launches += len(launches)
        record.unchecked += self.races and not races
        record.instructions += report.instructions
        record.kernels += [one for one in names if one not in record.kernels]
        for one in report.findings:
            key = (name, one.kind, one.where.split("@")[0].split("+")[0], one.first_line, one.second_line)
            if key in record.findings:
                record.findings[key].count += one.count
            else:
                record.findings[key] = one
        for text, count in report.warnings.items():
            record.warnings[text] = record.warnings.get(text, 0) + count

    def _memory(self) -> GlobalMemory:
        """What lives of what was shown, smaller pieces inside larger ones left out."""
        self._spans = {start: (size, gone) for start, (size, gone) in self._spans.items() if not gone()}
        memory, end = GlobalMemory(), 0
        for place, (start, (size, _)) in enumerate(sorted(self._spans.items())):
            if start >= end:
                end = start + size
                memory.add(bytes_of(ByteSpan(start, end, "")), f"buffer {place}")
        return memory

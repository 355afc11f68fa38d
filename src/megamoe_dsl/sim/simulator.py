"""The public entry: PTX text and memory in, a report out."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import numpy as np

from .assumptions import STRICT, Assumptions
from .errors import SimError, require_integer
from .lane_agents import agents_needed, check_agents
from .launch import Launch
from .machine import World
from .memory import GlobalMemory
from .program import load
from .race import Race
from .report import KernelNames, Report, describe_line

_COLLECT_AFTER = 50_000  # objects; what a run leaves in cycles is little, and looking for it takes a tenth of its time


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Python looks for garbage in cycles less often, unless it never does."""
    first, *others = gc.get_threshold()
    gc.set_threshold(max(first, _COLLECT_AFTER) if first else 0, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


class Simulator:
    """Runs the kernels of one or more PTX modules.

    `ptx` and `kernel` (the name of an entry, default the first) are the program of launches that name none; with `ptx` None every
    launch names its own. `seed` fixes the random schedule, `race` turns the detector on, `max_delay` bounds the delay of asynchronous
    actions in scheduler sweeps, `progress(instructions, seconds)` is called about once a second, and `resident` bounds how many CTAs
    of all ranks run at once (default: all). `assumptions` say what the run takes for granted. `most_instructions` bounds the warp
    instructions of a run (default: none).

    Raises SimError for an argument that is out of range.
    """

    def __init__(
        self,
        ptx: str | None,
        memory: GlobalMemory,
        seed: int = 0,
        race: bool = True,
        max_delay: int = 3,
        progress: Callable[[int, float], None] | None = None,
        kernel: str | None = None,
        resident: int | None = None,
        assumptions: Assumptions = STRICT,
        most_instructions: int | None = None,
    ) -> None:
        require_integer("seed", seed, None)
        require_integer("max_delay", max_delay, 0)
        for name, value in (("resident", resident), ("most_instructions", most_instructions)):
            if value is not None:
                require_integer(name, value, 1)
        self.most_instructions = most_instructions
        self.memory, self.seed, self.race, self.max_delay, self.progress, self.resident = memory, seed, race, max_delay, progress, resident
        self.assumptions = assumptions
        self.program = None if ptx is None else load(ptx, kernel)

    def run(self, launches: Sequence[Launch]) -> Report:
        """Run all launches to the end, those of one rank in this order. Raises SimError (Deadlock when nothing can progress)."""
        if not launches:
            raise SimError("nothing to launch")
        for launch in launches:
            launch.check()
        if self.race:
            check_agents(agents_needed(launches), so_far=False)
        launches = [launch if launch.program else replace(launch, program=self.program) for launch in launches]
        programs = [launch.checked() for launch in launches]
        if self.assumptions.late_loads:
            programs = [program.with_late_loads for program in programs]
            launches = [replace(launch, program=program) for launch, program in zip(launches, programs, strict=True)]
        if uses := [text for program in programs for text in program.unwaited if not self.assumptions.tensor_waits]:
            raise SimError(f"{uses[0]} (to run it all the same: Assumptions(tensor_waits=True))")
        kernels = KernelNames(program.kernel for program in programs)
        race = Race(self.memory, kernels, self.assumptions.lockstep) if self.race else None
        world = World(self.memory, self.seed, race, self.max_delay, kernels, self.assumptions)
        for program in set(programs):
            for name, line in program.kernel.unwritten.items():
                world.warnings[f"{describe_line(line, kernels.of(program.kernel), '')}: {name} is read, and nothing writes it"] += 1
        for launch in launches:
            world.queue(launch)
        start = time.perf_counter()
        cluster_size = max(prod(launch.cluster) for launch in launches)
        resident = len(world.waiting) if self.resident is None else max(1, self.resident // cluster_size)
        try:
            with np.errstate(all="ignore"), _seldom_collected():
                world.run(resident, self._ticker(world, start), self.most_instructions)
        finally:
            world.forget()
            if race:
                race.forget()
        findings = list(race.findings.values()) if race else []
        return Report(world.instructions, time.perf_counter() - start, findings, world.warnings, world.copied)

    def _ticker(self, world: World, start: float) -> Callable[[], None] | None:
        if self.progress is None:
            return None
        callback, last = self.progress, [start]

        def tick() -> None:
            now = time.perf_counter()
            if now - last[0] >= 1.0:
                last[0] = now
                callback(world.instructions, now - start)

        return tick

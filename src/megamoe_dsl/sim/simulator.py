"""The public entry: PTX text and memory in, a report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from .errors import SimError
from .launch import Launch
from .machine import World
from .memory import GlobalMemory
from .parser import parse
from .program import Program
from .race import Race
from .report import Report


@lru_cache(maxsize=16)
def _load(ptx: str, kernel: str | None, race: bool) -> Program:
    """A program holds no state of a run, so simulators of the same text share it and its compiled units."""
    return Program(parse(ptx, kernel), race)


class Simulator:
    """Runs one kernel of a PTX module.

    `seed` fixes the random schedule, `race` turns the detector on, `max_delay` bounds the delay of asynchronous actions in scheduler
    sweeps, `progress(instructions, seconds)` is called about once a second, `kernel` names the entry (default: the first), and
    `resident` bounds how many CTAs of all ranks run at once (default: all).
    """

    def __init__(
        self,
        ptx: str,
        memory: GlobalMemory,
        seed: int = 0,
        race: bool = True,
        max_delay: int = 3,
        progress: Callable[[int, float], None] | None = None,
        kernel: str | None = None,
        resident: int | None = None,
    ) -> None:
        self.memory, self.seed, self.race, self.max_delay, self.progress, self.resident = memory, seed, race, max_delay, progress, resident
        self.program = _load(ptx, kernel, race)

    def run(self, launches: Sequence[Launch]) -> Report:
        """Run all launches concurrently to the end. Raises SimError (Deadlock when nothing can progress)."""
        if not launches:
            raise SimError("nothing to launch")
        race = Race(self.memory, sources=self.program.sources) if self.race else None
        world = World(self.program, self.memory, self.seed, race, self.max_delay)
        for launch in launches:
            world.queue(launch)
        start = time.perf_counter()
        cluster_size = max(int(np.prod(launch.cluster)) for launch in launches)
        resident = len(world.waiting) if self.resident is None else max(1, self.resident // cluster_size)
        with np.errstate(all="ignore"):
            world.run(resident, self._ticker(world, start))
        findings = list(race.findings.values()) if race else []
        return Report(world.instructions, time.perf_counter() - start, findings, world.warnings)

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

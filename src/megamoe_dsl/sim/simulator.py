"""The public entry: PTX text and memory in, a report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from .agents import agents_needed, check_agents
from .errors import SimError
from .kernel_names import KernelNames
from .launch import Launch
from .machine import World
from .memory import GlobalMemory
from .program import load
from .race import Race
from .report import Report


class Simulator:
    """Runs the kernels of one or more PTX modules.

    `ptx` and `kernel` (the name of an entry, default the first) are the program of launches that name none; with `ptx` None every
    launch names its own. `seed` fixes the random schedule, `race` turns the detector on, `max_delay` bounds the delay of asynchronous
    actions in scheduler sweeps, `progress(instructions, seconds)` is called about once a second, and `resident` bounds how many CTAs
    of all ranks run at once (default: all). `assume_tensor_fences` spares kernels that leave out `tcgen05.fence`, as many public ones
    do, the findings of the race detector; `assume_tensor_waits` runs those that leave out `tcgen05.wait::ld`, which are refused otherwise.
    `store_uninitialised` makes TMA stores of bytes that nobody wrote a warning, and `load_uninitialised` loads of such shared memory, which
    give NaNs: rows of padding, in public kernels. `leader` is the lane that `elect.sync` elects. With `late_loads` the seed also says
    when loads take their values (see `late_loads`). Without `assume_lockstep` lanes that execute an instruction together need not have
    executed what comes before it (see `lane_order`).
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
        assume_tensor_fences: bool = False,
        assume_tensor_waits: bool = False,
        store_uninitialised: bool = False,
        assume_lockstep: bool = True,
        leader: int = 0,
        late_loads: bool = False,
        load_uninitialised: bool = False,
    ) -> None:
        if not 0 <= leader < 32:
            raise SimError(f"leader {leader}: a lane, 0 to 31")
        self.memory, self.seed, self.race, self.max_delay, self.progress, self.resident = memory, seed, race, max_delay, progress, resident
        self.assume_tensor_fences, self.assume_tensor_waits = assume_tensor_fences, assume_tensor_waits
        self.store_uninitialised, self.load_uninitialised = store_uninitialised, load_uninitialised
        self.assume_lockstep, self.leader, self.late_loads = assume_lockstep, leader, late_loads
        self.program = None if ptx is None else load(ptx, kernel)

    def run(self, launches: Sequence[Launch]) -> Report:
        """Run all launches to the end, those of one rank in this order. Raises SimError (Deadlock when nothing can progress)."""
        if not launches:
            raise SimError("nothing to launch")
        if self.race:
            check_agents(agents_needed(launches), so_far=False)
        launches = [launch if launch.program else replace(launch, program=self.program) for launch in launches]
        programs = [launch.check() for launch in launches]
        if self.late_loads:
            programs = [program.with_late_loads for program in programs]
            launches = [replace(launch, program=program) for launch, program in zip(launches, programs, strict=True)]
        if uses := [text for program in programs for text in program.unwaited if not self.assume_tensor_waits]:
            raise SimError(f"{uses[0]} (to run it all the same: assume_tensor_waits=True)")
        kernels = KernelNames(program.kernel for program in programs)
        race = Race(self.memory, kernels, self.assume_lockstep) if self.race else None
        world = World(self.memory, self.seed, race, self.max_delay, kernels)
        world.assume_tensor_fences, world.assume_tensor_waits = self.assume_tensor_fences, self.assume_tensor_waits
        world.store_uninitialised, world.load_uninitialised = self.store_uninitialised, self.load_uninitialised
        world.leader = self.leader
        for launch in launches:
            world.queue(launch)
        start = time.perf_counter()
        cluster_size = max(prod(launch.cluster) for launch in launches)
        resident = len(world.waiting) if self.resident is None else max(1, self.resident // cluster_size)
        try:
            with np.errstate(all="ignore"):
                world.run(resident, self._ticker(world, start))
        finally:
            world.forget()
            if race:
                race.forget()
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

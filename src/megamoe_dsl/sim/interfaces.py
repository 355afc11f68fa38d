"""What engines and instruction families see of the run that they are in, and what the run takes for granted."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from .errors import SimError
from .geometry import Dim3
from .memory import GlobalMemory
from .parser import ParsedKernel
from .race import Race


@dataclass(frozen=True)
class Assumptions:
    """What a run assumes about the machine where PTX leaves it open, and which omissions of kernels it accepts.

    The machine:

    leader               the lane that `elect.sync` elects
    lockstep             lanes that execute an instruction together have also executed the instructions before it together (`lane_order`)
    late_loads           loads take their values as late as PTX lets them, by the run's seed (`late_loads`)

    Omissions, which many public kernels make; otherwise each is a finding or an error:

    tensor_fences        `tcgen05.fence` need not stand around tcgen05 operations
    tensor_waits         `tcgen05.ld` and `tcgen05.st` are done when they are issued, before `tcgen05.wait::ld` and `::st`
    load_uninitialized   loads of shared memory that nobody wrote are a warning and give NaNs: rows of padding
    store_uninitialized  TMA stores of such memory are a warning

    Raises SimError when `leader` is no lane.
    """

    leader: int = 0
    lockstep: bool = True
    late_loads: bool = False
    tensor_fences: bool = False
    tensor_waits: bool = False
    load_uninitialized: bool = False
    store_uninitialized: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.leader < 32:
            raise SimError(f"leader {self.leader}: a lane, 0 to 31")


STRICT = Assumptions()  # What PTX says, on lanes that go together.


Action = Callable[[], None]
Origin = Callable[[], str]  # Says which instruction posted an action, when an error asks.


@dataclass(eq=False)
class RunState:
    """One run. `progress` counts changes that another warp could wait for; `pipes` hold actions that keep their order, with their origins;
    `waiting` are clusters that have not started: their grids, and the indices of their first CTAs."""

    memory: GlobalMemory
    seed: int
    race: Race  # `UNWATCHED` in a run without the detector
    max_delay: int
    kernels: dict[ParsedKernel, str]
    assumptions: Assumptions
    instructions: int = 0
    sweeps: int = 0
    progress: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    crossed: int = 0
    waiting: deque[tuple[Any, Dim3]] = field(default_factory=deque)
    pipes: list[deque[tuple[Origin, Action]]] = field(default_factory=list)
    _posted: list[tuple[int, Origin, Action]] = field(default_factory=list)
    uids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def clock(self) -> int:
        """Simulated time: advances with instructions, and with sweeps when nothing runs."""
        return self.instructions + 64 * self.sweeps

    def pipe(self) -> deque[tuple[Origin, Action]]:
        """A new pipe: what is posted to it happens in this order, at random times."""
        self.pipes.append(deque())
        return self.pipes[-1]

    def post(self, action: Action, origin: Origin, pipe: deque[tuple[Origin, Action]] | None = None) -> None:
        """Run `action` after a random delay, or after all of its pipe; `origin` names it in errors (see `ops.access.origin`)."""
        self.progress += 1
        if pipe is None:
            self._posted.append((self.sweeps + self.rng.randint(0, self.max_delay), origin, action))
        else:
            pipe.append((origin, action))

    def cancel(self, grid: Any) -> Dim3 | None:
        """Take back a cluster of a grid that has not started: the index of its first CTA, None when all have."""
        for i, (other, origin) in enumerate(self.waiting):
            if other is grid:
                del self.waiting[i]
                grid.cancel()
                return origin
        return None

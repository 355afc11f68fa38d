"""What engines and instruction families see of the run that they are in, and what the run takes for granted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .errors import SimError
from .geometry import Dim3
from .memory import GlobalMemory
from .race import Race
from .report import KernelNames
from .sync import Place


@dataclass(frozen=True)
class Assumptions:
    """What holds of the machine where PTX leaves it open, and what kernels may leave out.

    The machine, where the first values are those of a GPU at ease:

    leader               the lane that `elect.sync` elects
    lockstep             lanes that execute an instruction together have executed what comes before it together too (`lane_order`)
    late_loads           loads take their values as late as PTX lets them, by the run's seed (`late_loads`)

    Kernels, as many public ones are; without these it is a finding or an error:

    tensor_fences        `tcgen05.fence` need not stand around tcgen05 operations
    tensor_waits         results of `tcgen05.ld` are there before `tcgen05.wait::ld`
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


STRICT = Assumptions()
"""What PTX says, on lanes that go together."""


Action = Callable[[], None]
Origin = Callable[[], str]
"""Says which instruction posted an action, when an error asks."""


class WorldLike(Protocol):
    """One run: state that all launches share.

    `progress` counts changes that another warp could wait for, `copied` bytes as a `Report` does; `pipes` holds actions that keep their
    order, with their origins.
    """

    memory: GlobalMemory
    kernels: KernelNames
    race: Race | None
    assumptions: Assumptions
    instructions: int
    sweeps: int
    progress: int
    warnings: Counter[str]
    copied: Counter[tuple[int, int]]
    pipes: list[deque[tuple[Origin, Action]]]

    def next_uid(self) -> int: ...

    def clock(self) -> int: ...

    def cancel(self, cta: Place) -> Dim3 | None: ...

    def chance(self, probability: float) -> bool: ...

    def post(self, action: Action, origin: Origin) -> None: ...

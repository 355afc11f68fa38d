"""What engines and instruction families see of the run that they are in, whose class says what its methods do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from .assumptions import Assumptions
from .geometry import Dim3
from .memory import GlobalMemory
from .race import Race
from .report import KernelNames
from .sync import Place

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

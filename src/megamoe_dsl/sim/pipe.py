"""Asynchronous actions that keep their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import World


class Pipe:
    """Actions that run in the order they were pushed, at random times (the tensor pipe of a CTA)."""

    def __init__(self, world: World) -> None:
        self.world, self.actions = world, deque[tuple[str, Callable[[], None]]]()
        world.pipes.append(self)

    def push(self, action: Callable[[], None], origin: str) -> None:
        """Append an action; `origin` names it in errors."""
        self.world.progress += 1
        self.actions.append((origin, action))

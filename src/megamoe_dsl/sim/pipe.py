"""Asynchronous actions that keep their order."""

from __future__ import annotations

from collections import deque

from .interfaces import Action, Origin, WorldLike


class Pipe:
    """Actions that run in the order they were pushed, at random times (the tensor pipe of a CTA)."""

    def __init__(self, world: WorldLike) -> None:
        self.world, self.actions = world, deque[tuple[Origin, Action]]()
        world.pipes.append(self.actions)

    def push(self, action: Action, origin: Origin) -> None:
        """Append an action; `origin` names it in errors."""
        self.world.progress += 1
        self.actions.append((origin, action))

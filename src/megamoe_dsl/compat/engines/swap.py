"""Attributes of other packages' modules that are replaced, and can be put back."""

from __future__ import annotations

from types import ModuleType

_ABSENT = object()


class Swap:
    """Remembers what was there."""

    def __init__(self) -> None:
        self._before: list[tuple[ModuleType, str, object]] = []

    def put(self, owner: ModuleType, name: str, value: object) -> None:
        """Sets an attribute, which need not be there yet."""
        self._before.append((owner, name, getattr(owner, name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Everything as it was, the last change first."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

"""A kernel's run-time arguments, read from the dataclass that declares them: names, in order, and widths."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

WIDTHS = {"Int32": 4, "Int64": 8, "TensorMap": 128}
"""Bytes of what an argument may be; the types are the DSL's, and pointers are 64-bit addresses.  Only kernels take tensor maps, which their
launching functions make."""


@dataclass(frozen=True)
class ArgumentSpec:
    """Name and type of each argument, in the order of a launch.

    The dataclass is never evaluated: its annotations are text, so that a machine without the DSL can read them.
    """

    arguments: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, declared: type[Any]) -> ArgumentSpec:
        """Raises TypeError for a field of another type."""
        found = tuple((one.name, one.type if isinstance(one.type, str) else one.type.__name__) for one in fields(declared))
        for name, kind in found:
            if kind not in WIDTHS:
                raise TypeError(f"{declared.__name__}.{name}: {kind}, must be one of {', '.join(WIDTHS)}")
        return cls(found)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.arguments)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(WIDTHS[kind] for _, kind in self.arguments)

    def pack(self, **values: int) -> tuple[int, ...]:
        """Values by name, in the order of a launch.  Raises TypeError for a name too many or too few."""
        if values.keys() != set(self.names):
            odd = sorted(values.keys() ^ set(self.names))
            raise TypeError(f"arguments {', '.join(odd)}: must be exactly {', '.join(self.names)}")
        return tuple(values[name] for name in self.names)

"""What differs between two inspections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NOT_COMPARED = frozenset({"compile_seconds", "baseline"})


@dataclass(frozen=True)
class Change:
    """A value that differs; None on the side that lacks it."""

    path: str
    before: Any
    after: Any


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """("measures.mma_k_block.instructions", 56.0) and so on."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flatten(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Changes between two `Inspection.as_dict()`, in the order of `after`; times and the baseline are not compared."""
    old, new = (dict(flatten({k: v for k, v in one.items() if k not in NOT_COMPARED})) for one in (before, after))
    return [Change(path, old.get(path), new.get(path)) for path in dict.fromkeys([*new, *old]) if old.get(path) != new.get(path)]

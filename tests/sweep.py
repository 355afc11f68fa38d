"""Cases of which the suite has another of their kind: `python -m pytest -m sweep` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def rarely(*values: Any) -> Any:
    """Values of a case that only the sweep runs."""
    return pytest.param(*values, marks=pytest.mark.sweep)


def sample(*ids: str) -> pytest.MarkDecorator:
    """Marks a parametrized test of which `make test` runs the cases with these ids; the sweep runs the others."""
    return pytest.mark.sample(*ids)


def mark_the_sweep(items: Sequence[pytest.Item], complete: bool) -> None:
    """Marks the cases that no sample names.  Raises `UsageError` for an id that no case of the suite has, where collection was
    `complete`."""
    unknown: dict[str, set[str]] = {}
    for item in items:
        if mark := item.get_closest_marker("sample"):
            name, _, case = item.nodeid.partition("[")
            named = unknown.setdefault(name, set(mark.args))
            if case.removesuffix("]") not in mark.args:
                item.add_marker(pytest.mark.sweep)
            elif item.get_closest_marker("sweep") is None:
                named.discard(case.removesuffix("]"))
    if complete and (wrong := [f"{name}[{one}]" for name, ids in unknown.items() for one in sorted(ids)]):
        raise pytest.UsageError(f"sample names cases that do not exist, or that only the sweep runs: {', '.join(wrong)}")

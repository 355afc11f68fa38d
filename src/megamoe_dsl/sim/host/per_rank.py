"""Arguments that differ between simulated ranks."""

from __future__ import annotations

from typing import Any

from ..errors import SimError


class PerRank:
    """An argument of `run` that differs from rank to rank: one value for each."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def of_rank(value: Any, rank: int, ranks: int, place: int) -> Any:
    """An argument as one of `ranks` ranks gets it; `place` names it in errors.  Raises SimError for another number of values."""
    if not isinstance(value, PerRank):
        return value
    if len(value.values) != ranks:
        raise SimError(f"argument {place}: PerRank of {len(value.values)} values, must be {ranks}")
    return value.values[rank]

"""Which of several predicted times is worth choosing: none where they differ by less than the model can tell."""

from __future__ import annotations

from collections.abc import Sequence

NO_PREFERENCE = 0.05
"""Of the smaller time: choices that differ by less are equally good as far as the model knows."""
PRUNED = 0.15
"""Choices that are predicted to be so much slower than the fastest are not worth timing."""


def prefers(one: float, other: float) -> bool | None:
    """Whether the first of two predicted times is worth choosing; None for no preference."""
    if abs(one - other) <= NO_PREFERENCE * min(one, other):
        return None
    return one < other


def worth_timing(times: Sequence[float]) -> list[bool]:
    """Which choices are, by their predicted times."""
    return [time <= (1 + PRUNED) * min(times) for time in times]

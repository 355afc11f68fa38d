"""Whole numbers as callers give them: Python's, numpy's, or anything else that is one."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex


def as_integer(value: object) -> int | None:
    """The value as an int, or None for what is no integer; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return int(index(value))
    except TypeError:  # an array of several numbers
        return None

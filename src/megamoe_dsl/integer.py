"""Whole numbers as callers give them: Python's, numpy's, or anything else that is one."""

from __future__ import annotations

import re
from operator import index
from typing import SupportsIndex

INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def parse_integer(text: str) -> int | None:
    """The integer that a text is in ASCII digits, or None for another text."""
    return int(text) if INTEGER.fullmatch(text.strip(" ")) else None


def as_integer(value: object) -> int | None:
    """The value as an int, or None for what is no integer; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return int(index(value))
    except TypeError:  # an array of several numbers
        return None

"""What the fields of an entry may hold, by the types that its class declares: a table is a file that anybody may have edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from typing import Any

from ..integer import as_integer

MOST = 1 << 31


def is_count(value: object) -> bool:
    """Whether it is an integer from 1 to 2^31."""
    number = as_integer(value)
    return number is not None and 1 <= number <= MOST


def is_choice(value: object) -> bool:
    """Whether it maps names of fields to integers from 0 to 2^31, or to true and false."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    numbers = [int(one) if isinstance(one, bool) else as_integer(one) for one in value.values()]
    return all(one is not None and 0 <= one <= MOST for one in numbers)


ALLOWED = {
    "int": (is_count, "an integer from 1 to 2^31"),
    "float": (lambda value: isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < inf, "a positive number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Mapping[str, int]": (is_choice, "an object of integers from 0 to 2^31"),
}
"""A check and its words, by the annotation of a field."""


def require_types(entry: Any) -> None:
    """Raises ValueError that names the first field, its value and what is allowed."""
    for one in fields(entry):
        holds, allowed = ALLOWED[str(one.type)]
        value = getattr(entry, one.name)
        if not holds(value):
            raise ValueError(f"{one.name} = {value!r}: must be {allowed}")

"""Whole numbers as callers give them: Python's, numpy's, or anything else that is one; and the error of a configuration's field."""

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


class ConfigError(ValueError):
    """A field of a kernel's configuration is out of range; the message names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value!r}: must be {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raises a `ConfigError` that names field, value and what is allowed, unless `holds`."""
    if not holds:
        raise ConfigError(field, value, allowed)


def require_integer(field: str, value: object) -> int:
    """The value as an int.  Raises `ConfigError` for what is no integer."""
    number = as_integer(value)
    if number is None:
        raise ConfigError(field, value, "an integer")
    return number


def require_integers(config: object, *names: str) -> None:
    """The same for fields of a configuration, which become ints: whatever they were given as, equal ones are one configuration."""
    for name in names:
        object.__setattr__(config, name, require_integer(name, getattr(config, name)))

"""Whole numbers as callers give them: Python's, numpy's, or anything else that is one; and the error of a configuration's field."""

from __future__ import annotations

import re
from dataclasses import fields
from operator import index
from typing import Any, SupportsIndex

INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def parse_integer(text: str) -> int | None:
    """The integer that a text is in ASCII digits, or None for another text."""
    return int(text) if INTEGER.fullmatch(text.strip(" ")) else None


def as_integer(value: object) -> int | None:
    """The value as an int, or None for what is no integer; a bool is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return int(index(value))
    except TypeError:  # an array of several numbers
        return None


def shown(value: object) -> str:
    """The value in one line of a message; of a long one the first 400 characters."""
    text = " ".join(repr(value).split("\n"))
    return text if len(text) <= 400 else f"{text[:400]}..."


class ConfigError(ValueError):
    """A field of a kernel's configuration is out of range; the message names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {shown(value)}: must be {allowed}")
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


def require_declared(config: Any, problem: type[Any] | None = None) -> None:
    """Raises `ConfigError` unless a configuration's problem is a `problem`, if one is given, and its fields are integers and flags where
    they are declared so.  Integers become ints: whatever they were given as, equal ones are one configuration."""
    if problem is not None:
        require(isinstance(config.problem, problem), "problem", config.problem, f"a {problem.__name__}")
    for name, kind in ((one.name, one.type) for one in fields(config)):
        value = getattr(config, name)
        if kind == "int":
            object.__setattr__(config, name, require_integer(name, value))
        require(kind != "bool" or isinstance(value, bool), name, value, "True or False")


def require_stages(config: Any, most: int) -> None:
    """Raises `ConfigError` unless `num_stages` is 2 or more and at most `most`, which 0 becomes."""
    if config.num_stages == 0:
        object.__setattr__(config, "num_stages", most)
    require(2 <= config.num_stages <= most, "num_stages", config.num_stages, f"between 2 and {most}, or 0 for the deepest")

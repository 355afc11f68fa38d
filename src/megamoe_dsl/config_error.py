"""Whole numbers as callers give them: Python's, numpy's, or anything else that is one; configurations, and the error of a field of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, SupportsIndex

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


@dataclass(frozen=True)
class CheckedConfig:
    """What configurations of kernels have in common: fields are checked when one is made.  Each check raises `ConfigError`, which names a
    field, its value and what is allowed."""

    replace = replace

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # what a family's, or an architecture's, has

    @property
    def num_clusters(self) -> int:
        """How many the grid has, each of which takes tiles together."""
        return int(self.num_sms // self.cluster)

    def require(self, field: str, holds: bool, allowed: str) -> None:
        """`field` may be one of the problem's, or several."""
        require(holds, field, attrgetter(*field.split(", "))(self), allowed)

    def require_any(self, field: str, allowed: Iterable[object], where: str = "") -> None:
        """The field is one of these, which the message says by name."""
        self.require(field, attrgetter(field)(self) in tuple(allowed), " or ".join(map(str, allowed)) + where)

    def only_where(self, field: str, holds: bool, where: str) -> None:
        """What it is if nobody says, unless `holds`."""
        usual = getattr(type(self), field)
        self.require(field, holds or getattr(self, field) == usual, f"{usual} {where}")

    def check_declared(self, problem: type[Any] | None = None) -> None:
        """The configuration's problem is a `problem`, if one is given, and fields are integers and flags where they are declared so.
        Integers become ints: whatever they were given as, equal ones are one configuration."""
        if problem is not None:
            self.require("problem", isinstance(self.problem, problem), f"a {problem.__name__}")
        for one in fields(self):
            if one.type == "int":
                object.__setattr__(self, one.name, require_integer(one.name, getattr(self, one.name)))
            self.require(one.name, one.type != "bool" or isinstance(getattr(self, one.name), bool), "True or False")

    def check_clusters(self) -> None:
        """The grid has clusters, all whole."""
        whole = self.num_sms >= self.cluster and self.num_sms % self.cluster == 0
        self.require("num_sms", whole, f"a positive multiple of {self.cluster}")

    def check_depth(self, most: int, field: str = "num_stages") -> None:
        """`num_stages` is 2 or more and at most `most`, which 0 becomes; `field` is what a tile is too large by where 2 do not fit."""
        self.require(field, most >= 2 or field == "num_stages", "small enough to leave SMEM for two stages")
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", most)
        self.require("num_stages", 2 <= self.num_stages <= most, f"between 2 and {most}, or 0 for the deepest")

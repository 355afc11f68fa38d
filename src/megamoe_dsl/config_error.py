"""Integers as callers pass them (Python's, numpy's, anything with `__index__`); what checked configurations share, and `ConfigError`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def parse_integer(text: str) -> int | None:
    """The integer in a text of ASCII digits; None for any other text."""
    return int(text) if INTEGER.fullmatch(text.strip(" ")) else None


def as_integer(value: object) -> int | None:
    """The value as an int; None if it is no integer or is a bool."""
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


class FieldError(ValueError):
    """A field or an argument is out of range; the message names it, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {shown(value)}: must be {allowed}")
        self.field, self.value, self.allowed = field, value, allowed

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


class ConfigError(FieldError):
    """A field of a kernel's configuration is out of range."""


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
    """Base of kernels' configurations: frozen dataclasses of JSON values and a `problem`, which check their fields when they are made.
    Each check raises `ConfigError`, which names the field, its value and what is allowed.

    A configuration also has the architecture it is for, `arch`; CTAs of the grid and of a cluster, `num_sms` and `cluster`; threads of a
    CTA, `num_threads`; and what a subclass replaces of the following.
    """

    replace = replace
    map_names: ClassVar[Any] = ()  # tensor maps that the kernel takes as parameters before its arguments, in order
    smem: ClassVar[Any] = None  # plan of shared memory (`SharedPlan`)
    tmem: ClassVar[Any] = None  # plan of tensor memory (`TmemPlan`)
    registers: ClassVar[Any] = {}  # per thread of each group of warps after `setmaxnreg`; empty: all keep what they begin with

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # fields of subclasses

    @property
    def num_clusters(self) -> int:
        """Clusters of the grid; the CTAs of a cluster take their tiles together."""
        return int(self.num_sms // self.cluster)

    def maps(self, args: Any) -> list[Any]:
        """Fields of the tensor maps, in the order of `map_names`; `args` has those of the kernel's arguments."""
        return []

    def tensor_maps(self, sym: int, weights: Mapping[str, int]) -> list[Any]:
        """The table of tensor maps in global memory, for a symmetric buffer at `sym` and weights at these addresses, by name."""
        return []

    def require(self, field: str, holds: bool, allowed: str) -> None:
        """`field` may be a path, as in problem.recipe, or several fields with ", " between them."""
        require(holds, field, attrgetter(*field.split(", "))(self), allowed)

    def require_between(self, field: str, low: int, high: int, why: str = "") -> None:
        """Requires a number from `low` to `high`."""
        self.require(field, low <= getattr(self, field) <= high, f"between {low} and {high}{why}")

    def require_any(self, field: str, allowed: Iterable[object], where: str = "") -> None:
        """Requires one of the allowed values, which the message lists."""
        self.require(field, attrgetter(field)(self) in tuple(allowed), " or ".join(map(str, allowed)) + where)

    def only_where(self, field: str, holds: bool, where: str) -> None:
        """Requires the field's default unless `holds`."""
        usual = getattr(type(self), field)
        self.require(field, holds or getattr(self, field) == usual, f"{usual} {where}")

    def check_declared(self, problem: type[Any] | None = None) -> None:
        """Requires a problem of this class, if one is given, and integers and bools where fields are declared as such.  Integers of other
        types become ints, so that equal configurations compare and hash equal."""
        if problem is not None:
            self.require("problem", isinstance(self.problem, problem), f"a {problem.__name__}")
        for one in fields(self):
            if one.type == "int":
                object.__setattr__(self, one.name, require_integer(one.name, getattr(self, one.name)))
            self.require(one.name, one.type != "bool" or isinstance(getattr(self, one.name), bool), "True or False")

    def check_clusters(self) -> None:
        """Requires a grid of whole clusters, one or more."""
        whole = self.num_sms >= self.cluster and self.num_sms % self.cluster == 0
        self.require("num_sms", whole, f"a positive multiple of {self.cluster}")

    def check_depth(self, most: int, field: str = "num_stages") -> None:
        """Requires 2 to `most` stages, and replaces 0 by `most`; `field` is named in the error if not even 2 stages fit."""
        self.require(field, most >= 2 or field == "num_stages", "small enough to leave SMEM for two stages")
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", most)
        self.require_between("num_stages", 2, most, ", or 0 for the deepest")

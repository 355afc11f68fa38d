"""Options that the package declares as dataclasses, on argparse and pytest."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from megamoe_dsl.options.option import options_of

Kind = TypeVar("Kind")


def add_options(add: Callable[..., Any], kind: type) -> None:
    """Declares the options of a dataclass with `add`, which takes what argparse's `add_argument` takes."""
    for one in options_of(kind):
        shown = one.shown if one.shown is not None else one.default
        note = "" if shown is None else f" [default: {shown}]"
        typed = {"type": one.type, "default": one.default, "help": f"{one.text}{note}".replace("%", "%%")}
        add(one.flag, **({"action": "store_true", "help": one.text} if one.type is bool else typed))


def read_options(kind: type[Kind], given: Namespace) -> Kind:
    """The dataclass of what was given; an option that nobody declared has its default."""
    return kind(**{one.name: getattr(given, one.name, one.default) for one in options_of(kind)})

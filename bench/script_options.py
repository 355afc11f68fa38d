"""Options that the package declares as dataclasses, on argparse and pytest."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from megamoe_dsl.config_error import parse_integer
from megamoe_dsl.options.option import naming, options_of

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


def naming_options(kind: type) -> AbstractContextManager[None]:
    """Errors raised inside name options of a dataclass instead of fields."""
    return naming({one.name: one.flag for one in options_of(kind)})


def at_least(least: int) -> Callable[[str], int]:
    """A `type` of argparse: integers of at least `least`."""

    def read(text: str) -> int:
        number = parse_integer(text)
        if number is None or number < least:
            raise ArgumentTypeError(f"{text!r}: must be a number, at least {least}")
        return number

    return read

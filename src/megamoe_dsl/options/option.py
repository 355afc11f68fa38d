"""Command-line options, declared once as fields of a dataclass, for argparse, pytest and typer (cli/options.py). Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..config_error import ConfigError, parse_integer
from ..problem import ProblemError

TYPED = {
    "num_ranks": "ranks", "num_experts": "experts", "max_tokens_per_rank": "tokens", "num_tokens": "tokens", "num_sms": "sms",
    "num_stages": "stages", "activation_clamp": "clamp", "problem.recipe": "recipe",
}  # fmt: skip
"""Options of another name than the field of a problem or configuration that they give, by that field."""


def option(default: Any, text: str, panel: str = "Run", shown: str | None = None) -> Any:
    """A dataclass field that is an option: its default, help text, heading in --help, and the default that --help shows."""
    return field(default=default, metadata={"text": text, "panel": panel, "shown": shown})


@dataclass(frozen=True)
class Option:
    """One option.  `type` parses a value; `annotation` is the field's type, maybe with None.  A bool is a switch, off by default."""

    name: str
    type: type
    annotation: Any
    default: Any
    text: str
    panel: str
    shown: str | None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def options_of(kind: type) -> list[Option]:
    """Options of a dataclass, in the order of its fields."""
    hints = get_type_hints(kind)
    found = []
    for one in fields(kind):
        (made_with,) = [kind for kind in get_args(hints[one.name]) if kind is not type(None)] or [hints[one.name]]
        found.append(Option(one.name, made_with, hints[one.name], one.default, **one.metadata))
    return found


def leave_out(given: Any, names: Iterable[str], why: str) -> None:
    """Raises `ProblemError` for the first of these options that is given."""
    known = {one.name: one for one in options_of(type(given))}
    for name in names:
        if (value := getattr(given, name)) != known[name].default:
            raise ProblemError(known[name].flag, str(value) if isinstance(value, Path) else value, f"left out with {why}")


def numbers(field: str, text: str, least: int) -> list[int]:
    """8,64 as [8, 64].  Raises `ProblemError`."""
    parts = text.split(",")
    found = [number for part in parts if (number := parse_integer(part)) is not None]
    if len(found) < len(parts):
        raise ProblemError(field, text, "numbers separated by commas")
    for one in found:
        if one < least:
            raise ProblemError(field, one, f"at least {least}")
    return found


@contextmanager
def naming(flags: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside name options instead of fields; `flags` maps options or fields to flags, as in {"num_sms": "--sms"}.  Names of
    `TYPED` are also replaced in the text that says what is allowed."""
    flags = {**flags, **{theirs: flags[ours] for theirs, ours in TYPED.items() if ours in flags}}
    try:
        yield
    except (ProblemError, ConfigError) as error:
        words = "|".join(one for one in TYPED if one in flags)
        allowed = re.sub(rf"\b({words})\b", lambda found: flags[found[0]], error.allowed) if words else error.allowed
        raise type(error)(flags.get(error.field, error.field), error.value, allowed) from None

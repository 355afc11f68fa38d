"""Errors become one line on stderr and exit code 2; fields have the names of the options that they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from ..config_error import ConfigError
from ..options.option import TYPED
from ..problem import ProblemError

BAD_INPUT = 2
SAME = (
    "hidden",
    "intermediate",
    "topk",
    "preset",
    "tokens",
    "mask",
    "seed",
    "block_m",
    "block_k",
    "lookahead",
    "arch",
    "kernel",
    "combine",
    "activation",
)
RENAMED = {**TYPED, "num_sms": "sms", "num_stages": "stages", "num_tokens": "tokens", "activation_clamp": "clamp"}
FLAGS = {field: f"--{option.replace('_', '-')}" for field, option in {**dict(zip(SAME, SAME, strict=True)), **RENAMED}.items()}
"""Fields of problems and configurations, and the options that they come from, in every command that has options of its own."""
_RENAMED_WORDS = re.compile(rf"\b({'|'.join(RENAMED)})\b")


def as_typed(error: ProblemError | ConfigError, flags: dict[str, str]) -> str:
    """The error's message with options in place of fields, in what is allowed too."""
    allowed = _RENAMED_WORDS.sub(lambda found: flags[found[0]], error.allowed)
    return f"{flags.get(error.field, error.field)} = {error.value!r}: must be {allowed}"


@contextmanager
def one_line_errors(capacity: str = FLAGS["max_tokens_per_rank"]) -> Iterator[None]:
    """Every error class that this package defines is written for its user; any other error is a bug and keeps its traceback.

    But for text that stdout cannot encode: that is the environment's.  `capacity` is the option that max_tokens_per_rank comes from.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        missing = ascii(error.object[error.start])
        typer.echo(f"error: encoding = {error.encoding!r}: must be one with {missing}; set PYTHONIOENCODING=utf-8", err=True)
        raise typer.Exit(BAD_INPUT) from None
    except Exception as error:
        if not (type(error).__module__.startswith("megamoe_dsl.") or isinstance(error, OSError)):
            raise
        text = str(error)
        if isinstance(error, ProblemError | ConfigError):
            text = as_typed(error, {**FLAGS, "max_tokens_per_rank": capacity})
        elif isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        first, *rest = text.splitlines() or [type(error).__name__]
        console = Console(stderr=True)
        console.print(Text(f"error: {first}", style="bold red"), soft_wrap=True)
        if rest:
            console.print(Text("\n".join(rest)), soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None

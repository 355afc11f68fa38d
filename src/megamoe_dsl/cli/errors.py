"""Errors become one line on stderr and exit code 2; fields have the names of the options that they come from."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ..config_error import ConfigError
from ..options.option import TYPED, as_typed
from ..problem import ProblemError

BAD_INPUT = 2
SAME = (
    "hidden", "intermediate", "topk", "preset", "tokens", "mask", "seed", "block_m", "block_k", "lookahead", "arch", "kernel", "combine",
    "activation", "pool_rows", "recipe", "points", "minutes",
)  # fmt: skip
RENAMED = {
    **TYPED, "num_sms": "sms", "num_stages": "stages", "num_tokens": "tokens", "activation_clamp": "clamp",
    "problem.pool_rows": "pool_rows", "problem.recipe": "recipe",
}  # fmt: skip
FLAGS = {field: f"--{option.replace('_', '-')}" for field, option in {**dict(zip(SAME, SAME, strict=True)), **RENAMED}.items()}
"""Fields of problems and configurations, and the options that they come from, in every command that has options of its own."""


class OneLineErrors(TyperGroup):
    """The commands.  An error of a class that this package defines ends any of them with one line, and so do lack of memory, what the
    system refuses and text that stdout cannot encode.  Any other error is a bug and keeps its traceback.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command that the arguments name, and ends the process."""
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except Exception as error:
            text = said(error)
            if text is None:
                raise
            fail(text)


def said(error: Exception) -> str | None:
    """What a user is told of an error; None for a bug."""
    if isinstance(error, UnicodeEncodeError):
        missing = ascii(error.object[error.start])
        return f"encoding = {error.encoding!r}: must be one with {missing}; set PYTHONIOENCODING=utf-8"
    if isinstance(error, MemoryError):
        return f"memory: {str(error) or 'there is not enough'}"
    if isinstance(error, ProblemError | ConfigError):
        return str(as_typed(error, FLAGS, RENAMED))
    if isinstance(error, OSError) and error.strerror:
        where = error.filename if error.filename is not None else "stdout" if drop_stdout() else None
        return error.strerror if where is None else f"{where}: {error.strerror}"
    if isinstance(error, OSError) or type(error).__module__.startswith("megamoe_dsl."):
        return str(error) or type(error).__name__
    return None


def drop_stdout() -> bool:
    """Whether stdout takes no more; then what is left for it goes nowhere, so that the process ends without another error."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"")
    except io.UnsupportedOperation:  # no file
        return False
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def fail(text: str) -> NoReturn:
    """Ends the command with a message: its first line stands out."""
    first, *rest = text.splitlines()
    console = Console(stderr=True)
    with suppress(OSError):
        console.print(Text(f"error: {first}", style="bold red"), soft_wrap=True)
        if rest:
            console.print(Text("\n".join(rest)), soft_wrap=True)
    sys.exit(BAD_INPUT)

"""Errors become one line on stderr and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

BAD_INPUT = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Every error class that this package defines is written for its user; any other error is a bug and keeps its traceback.

    But for text that stdout cannot encode: that is the environment's.
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
        first, *rest = str(error).splitlines() or [type(error).__name__]
        console = Console(stderr=True)
        console.print(Text(f"error: {first}", style="bold red"), soft_wrap=True)
        if rest:
            console.print(Text("\n".join(rest)), soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from None

"""`megamoe fuzz`: random layers beside the reference, until the time is over or one is wrong."""

from __future__ import annotations

import typer

from ..options.fuzz import FuzzOptions
from ..problem import ProblemError
from .options import takes

FAILED = 1


@takes(FuzzOptions)
def fuzz(given: FuzzOptions) -> None:
    """Draw problems, configurations, routings and data; compare with the reference, another tile and the unfused layer, bit by bit.

    A failure is shrunk, and printed as the command that repeats it.

    Exit code 0: none failed.  1: one did.  2: bad input, or hypothesis is missing.
    """
    try:
        from ..fuzz.run import run_fuzz
    except ImportError as error:
        if error.name != "hypothesis":
            raise
        raise ProblemError("hypothesis", None, "installed for this command: pip install 'megamoe_dsl[testing]'") from None
    if not run_fuzz(given, typer.echo):
        raise typer.Exit(FAILED)

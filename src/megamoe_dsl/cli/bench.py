"""`megamoe bench`: times the fused layer on this host's GPUs, beside the baseline."""

from __future__ import annotations

import typer

from ..bench.point_options import BenchOptions
from .errors import one_line_errors
from .options import takes

FAILED = 1


@takes(BenchOptions)
def bench(given: BenchOptions) -> None:
    """Check and time the fused layer on real GPUs; print a line per point, save JSON.

    Exit code 0: every point ran and was right.  1: one failed, was wrong or did not match.  2: bad input.
    """
    with one_line_errors():
        from ..bench.arguments import run_options
        from ..bench.passed import passed

        found = run_options(given)
    if not all(passed(one) for one in found.records):
        raise typer.Exit(FAILED)

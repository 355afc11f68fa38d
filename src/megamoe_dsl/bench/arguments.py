"""The benchmark from its options; its command line with the standard library only."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from ..problem import ProblemError
from .host import Host
from .options import add_options, naming_options, read_options
from .passed import passed
from .point_options import BenchOptions
from .points import points_of
from .results import Results
from .session import Session, run_session


def session_of(given: BenchOptions) -> Session:
    """What the options ask for; looks at nothing but them.  Raises `ProblemError`."""
    return Session(
        points_of(given, given.remote),
        given.artifacts,
        given.out,
        baseline=given.baseline,
        variants=given.variants,
        graphs=not given.no_graphs,
        soak=given.soak,
        check=given.check,
        trace=given.trace,
        watchdog_ms=given.watchdog_ms,
        other_sources=given.other_sources,
    )


def run_options(given: BenchOptions) -> Results:
    """Runs what the options ask for on this host's GPUs, which are looked at after all options.  Raises `ProblemError` in the options'
    words."""
    with naming_options(BenchOptions):
        session = session_of(given)
        return run_session(session, Host.find())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the session; exit code 1 when a point failed, was wrong or did not match, 2 for bad input."""
    parser = ArgumentParser(prog="mega_moe", description="Times the fused layer on the GPUs of this host.")
    add_options(parser.add_argument, BenchOptions)
    given = read_options(BenchOptions, parser.parse_args(arguments))
    try:
        found = run_options(given)
    except ProblemError as error:
        parser.error(str(error))
    sys.exit(0 if all(passed(one) for one in found.records) else 1)

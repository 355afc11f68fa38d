"""`megamoe bench`: times the SM90 kernel on this host's GPUs, beside the peer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..presets import preset as find_preset
from ..problem import ProblemError
from .errors import one_line_errors

FAILED = 1
POINTS, RUN = "Points", "Run"


def bench(
    preset: Annotated[str, typer.Option(help="flash or pro, or both with a comma.", rich_help_panel=POINTS)] = "flash",
    tokens: Annotated[str, typer.Option(help="Tokens per rank, as in 8,64,512.", rich_help_panel=POINTS)] = "8,64,512,2048,8192",
    ranks: Annotated[str, typer.Option(help="GPUs, as in 8 or 2,4,8.", rich_help_panel=POINTS)] = "8",
    experts_per_rank: Annotated[
        int | None, typer.Option(help="Instead of the preset's: 32 of flash on one rank are its share of eight.", rich_help_panel=POINTS)
    ] = None,
    artifacts: Annotated[Path, typer.Option(help="Folder of compiled kernels.", rich_help_panel=RUN)] = Path(".megamoe"),
    peer: Annotated[str | None, typer.Option(help="Folder with the peer's unpacked wheels.", rich_help_panel=RUN)] = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="Time every kernel in the folder that fits a point.", rich_help_panel=RUN)
    ] = False,
    no_graphs: Annotated[bool, typer.Option("--no-graphs", help="Back-to-back launches only.", rich_help_panel=RUN)] = False,
    soak: Annotated[int, typer.Option(help="Compare so many consecutive launches instead of timing.", rich_help_panel=RUN)] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Where the time of a launch goes, from a traced kernel, instead of timing.", rich_help_panel=RUN)
    ] = False,
    watchdog_ms: Annotated[int, typer.Option(help="Limit of every wait in a kernel.", rich_help_panel=RUN)] = 5000,
    out: Annotated[Path, typer.Option(help="Folder of the JSON files.", rich_help_panel=RUN)] = Path("bench/results"),
) -> None:
    """Check and time the SM90 kernel on real GPUs; print a line per point, save JSON.

    Exit code 0: every point ran and was right.  1: one failed, was wrong or did not match.  2: bad input.
    """
    from ..bench.arguments import passed
    from ..bench.point import Point
    from ..bench.session import Session, run_session

    with one_line_errors():
        names, counts, groups = preset.split(","), numbers("tokens", tokens), numbers("ranks", ranks)
        for name in names:
            find_preset(name)
        points = [Point(name, count, group, experts_per_rank) for group in groups for name in names for count in counts]
        for point in points:
            _ = point.problem
        session = Session(points, artifacts, out, peer, variants, not no_graphs, soak, trace, watchdog_ms)
        records = run_session(session)
    if not all(passed(one) for one in records):
        raise typer.Exit(FAILED)


def numbers(field: str, text: str) -> list[int]:
    """8,64 as [8, 64].  Raises `ProblemError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ProblemError(field, text, "numbers separated by commas") from None

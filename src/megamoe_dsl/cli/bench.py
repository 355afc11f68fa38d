"""`megamoe bench`: times the SM90 kernel on this host's GPUs, beside the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import one_line_errors
from .points import RUN, ExpertsPerRank, PresetNames, RankCounts, RemoteFraction, TokenCounts

FAILED = 1


def bench(
    preset: PresetNames = "flash",
    tokens: TokenCounts = "8,64,512,2048,8192",
    ranks: RankCounts = "8",
    experts_per_rank: ExpertsPerRank = None,
    remote: RemoteFraction = None,
    artifacts: Annotated[Path, typer.Option(help="Folder of compiled kernels.", rich_help_panel=RUN)] = Path(".megamoe"),
    baseline: Annotated[str | None, typer.Option(help="Folder with the baseline's unpacked wheels.", rich_help_panel=RUN)] = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="Time every kernel in the folder that fits a point.", rich_help_panel=RUN)
    ] = False,
    no_graphs: Annotated[bool, typer.Option("--no-graphs", help="Back-to-back launches only.", rich_help_panel=RUN)] = False,
    soak: Annotated[int, typer.Option(help="Compare so many consecutive launches instead of timing.", rich_help_panel=RUN)] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Where the time of a launch goes, from a traced kernel, instead of timing.", rich_help_panel=RUN)
    ] = False,
    watchdog_ms: Annotated[int, typer.Option(help="Limit of every wait in a kernel.", rich_help_panel=RUN)] = 5000,
    other_sources: Annotated[
        bool, typer.Option("--other-sources", help="Take kernels of other sources too, if buffers are laid out alike.", rich_help_panel=RUN)
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the JSON files.", rich_help_panel=RUN)] = Path("bench/results"),
) -> None:
    """Check and time the SM90 kernel on real GPUs; print a line per point, save JSON.

    Exit code 0: every point ran and was right.  1: one failed, was wrong or did not match.  2: bad input.
    """
    from ..bench.arguments import passed
    from ..bench.host import Host
    from ..bench.points import points_of
    from ..bench.session import Session, run_session

    with one_line_errors():
        points = points_of(preset, tokens, ranks, experts_per_rank, remote)
        session = Session(points, Host.find(), artifacts, out, baseline, variants, not no_graphs, soak, trace, watchdog_ms, other_sources)
        found = run_session(session)
    if not all(passed(one) for one in found.records):
        raise typer.Exit(FAILED)

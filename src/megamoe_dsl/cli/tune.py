"""`megamoe tune`: measures configurations and keeps the fastest in the table of the GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..json_file import tables_folder
from ..kernels.moe.family import MegaMoeKernel
from ..options.option import naming_options
from ..options.points import TuneOptions
from ..problem import ProblemError
from ..tuned import Table
from .bench import KernelOption, PointsOption, check_kernel, tune_other
from .options import takes
from .tables import FAILED, ruled, wide_console

if TYPE_CHECKING:
    from ..bench.host import Host
    from ..bench.point import Point
    from ..bench.results import Results

TABLE = "Table"


@takes(TuneOptions)
def tune(
    given: TuneOptions,
    results: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FILE...", help="Time nothing: take what runs have found.", rich_help_panel=TABLE)
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="Further files of --from.", show_default=False)] = None,
    tables: Annotated[Path | None, typer.Option(help="Folder of the tables; yours by default.", rich_help_panel=TABLE)] = None,
    kernel: KernelOption = MegaMoeKernel.name,
    points: PointsOption = None,
) -> None:
    """Time the candidates of every point on real GPUs, and keep the fastest in the GPU's table, from which configurations are chosen.

    The parts can be apart: `--compile-only` where the DSL is, `bench/mega_moe.py --variants` where the GPUs are, `--from` anywhere.
    A winner has passed its check and is faster than what the table has, or else than the heuristics' choice, by more than noise.

    Exit code 0: done.  1: a point failed or was wrong.  2: bad input.
    """
    with naming_options(TuneOptions):
        from ..artifact.cache import require_place
        from ..bench.host import Host
        from ..bench.point import points_of
        from ..bench.results import Results, passed
        from ..bench.session import Session, run_session
        from ..kernels.registry import arch_of_recipe, find_kernel

        files, tables = [*(results or []), *(more or [])], tables or tables_folder()
        if files and given.compile_only:
            raise ProblemError("--from", str(files[0]), "left out with --compile-only")
        check_kernel(kernel, points, given)
        if kernel != MegaMoeKernel.name:
            if not tune_other(kernel, points, given, files, tables):
                raise typer.Exit(FAILED)
            return
        if files:
            enter([Results.read(file) for file in files], tables)
            return
        shapes = points_of(given, given.remote, least_tokens=1)
        session = Session(shapes, given.artifacts, given.out, variants=True, watchdog_ms=given.watchdog_ms)
        if given.compile_only:
            arch = arch_of_recipe(find_kernel("mega_moe"), given.recipe)
            compile_candidates(shapes, Host.typical(arch), given.artifacts, needed=True)
            return
        require_place("--tables", tables)
        host = Host.find()
        host.check(shapes)
        compile_candidates(shapes, host, given.artifacts, needed=False)
        found = run_session(session, host)
        enter([found], tables)
    if not all(passed(one) for one in found.records):
        raise typer.Exit(FAILED)


def compile_candidates(points: list[Point], host: Host, artifacts: Path, needed: bool) -> None:
    """Makes the kernels that the folder lacks, where the DSL is.  Raises `ArtifactError` where it is not and `needed`, and `ProblemError`
    when kernels are lacking and the folder cannot be written."""
    from ..artifact.cache import load_one, require_writable
    from ..artifact.store import ArtifactError, ArtifactStore, dsl_version
    from ..artifact.workers import compile_into
    from ..bench.variant import candidates

    if dsl_version() is None:
        if needed:
            raise ArtifactError("nvidia-cutlass-dsl = None: must be installed to compile")
        return
    found = [candidates(point.problem, point.tokens, host.target, **point.pool) for point in points]
    configs = list(dict.fromkeys(config for some in found for config in some))
    store = ArtifactStore(artifacts)
    if any(load_one(store, config) is None for config in configs):
        require_writable("artifacts", artifacts)
    typer.echo(f"{len(configs)} candidates of {len(points)} points into {artifacts}")
    compile_into(artifacts, configs, len(os.sched_getaffinity(0)))


def enter(runs: list[Results], folder: Path) -> None:
    """Writes the winners of runs, one after the other, into the tables of their GPUs, and prints a line per point.  Nothing is written
    before all are judged. Raises `TableError`, and `ProblemError` where a table changes and cannot be written."""
    from ..artifact.cache import require_writable
    from ..bench.tuning import tune as judge_all
    from ..bench.variant import variant_text

    before = {found.gpu: Table.read(found.gpu, folder) for found in runs}
    after, judged = dict(before), []
    for found in runs:
        after[found.gpu], verdicts = judge_all(after[found.gpu], found)
        judged.append((found.name, verdicts))
    changed = [table for gpu, table in after.items() if table != before[gpu]]
    if changed:
        require_writable("--tables", folder)
    for name, verdicts in judged:
        entries = [(variant_text(one.entry.choice), f"{one.entry.us:.1f}") if one.entry else ("", "") for one in verdicts]
        rows = [(one.name, *entry, one.reason) for one, entry in zip(verdicts, entries, strict=True)]
        wide_console().print(ruled(name, ("point", "configuration", "us", "verdict"), rows))
    for table in changed:
        typer.echo(f"wrote {table.write(folder)}: {len(table.entries)} entries")

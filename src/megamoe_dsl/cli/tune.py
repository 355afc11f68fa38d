"""`megamoe tune`: measures configurations and keeps the fastest in the table of the GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..json_file import tables_folder
from ..kernels.gemm.family import GemmKernel
from ..kernels.moe.family import MegaMoeKernel
from ..options.points import TuneOptions
from ..problem import ProblemError
from ..tuned import Table
from .bench import KernelOption, PointsOption, check_kernel, run_of
from .options import takes
from .tables import FAILED, ruled, wide_console

if TYPE_CHECKING:
    from ..bench.results import Results
    from ..bench.tuning import Tuning

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
    from ..artifact.cache import require_place
    from ..artifact.store import ArtifactError, dsl_version
    from ..bench.host import Host
    from ..bench.tuning import GEMMS, HALVES_ALONE, LAYERS
    from ..kernels.registry import arch_of_recipe, find_kernel

    files, tables = [*(results or []), *(more or [])], tables or tables_folder()
    if files and given.compile_only:
        raise ProblemError("--from", str(files[0]), "left out with --compile-only")
    check_kernel(kernel, points, given)
    tuning = {MegaMoeKernel.name: LAYERS, GemmKernel.name: GEMMS}.get(kernel, HALVES_ALONE)
    if files:
        if points is not None:
            raise ProblemError("--points", points, "left out with --from")
        enter(tuning, [tuning.read(file) for file in files], tables)
        return
    run, has_dsl = run_of(kernel, points, given), dsl_version() is not None
    if given.compile_only:
        if not has_dsl:
            raise ArtifactError("nvidia-cutlass-dsl = None: must be installed to compile")
        host = Host.typical(arch_of_recipe(find_kernel("mega_moe"), given.recipe))
    else:
        require_place("--tables", tables)
        host = Host.find()
        run.check(host)
    if has_dsl:
        made = run.compile(host, len(os.sched_getaffinity(0)))
        typer.echo(f"{made} new candidates of {len(run.points)} points in {given.artifacts}")
    if given.compile_only:
        return
    found = run.run(host)
    enter(tuning, [found], tables)
    if not all(map(run.right, found.records)):
        raise typer.Exit(FAILED)


def enter(tuning: Tuning, runs: list[Results], folder: Path) -> None:
    """Enters the winners of each run into its GPU's table and prints a line per point.  Writes nothing before all runs are judged.
    Raises `TableError`, and `ProblemError` if a changed table cannot be written."""
    from ..artifact.cache import require_writable

    before = {found.gpu: Table.read(found.gpu, folder, tuning.kind) for found in runs}
    after, judged = dict(before), []
    for found in runs:
        after[found.gpu], verdicts = tuning.enter(after[found.gpu], found)
        judged.append((found.name, verdicts))
    changed = [table for gpu, table in after.items() if table != before[gpu]]
    if changed:
        require_writable("--tables", folder)
    for name, verdicts in judged:
        rows = [(one.name, one.entry.winner if one.entry else "", one.reason) for one in verdicts]
        wide_console().print(ruled(name, ("point", "configuration", "verdict"), rows))
    for table in changed:
        typer.echo(f"wrote {table.write(folder)}: {len(table.entries)} entries")

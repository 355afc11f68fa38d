"""`megamoe bench --kernel gemm` and `megamoe tune --kernel gemm`: GEMMs at the points of docs/lab/gemms.md, on one GPU."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from ..bench.gemm.point import GemmPoint, find_points
from ..options.points import RunOptions
from ..problem import ProblemError
from ..tuned import GemmEntry, Table


def points_of(text: str | None, recipe: str) -> tuple[GemmPoint, ...]:
    """Points of a recipe by parts of their names; all without a text.  Raises `ProblemError`."""
    return tuple(find_points(text.split(",") if text else [], recipe))


def bench_gemms(points: str | None, given: RunOptions, *, variants: bool) -> tuple[Path, bool]:
    """Checks and times, prints a table per point; the results file, and whether every point ran and was right.

    Raises `ProblemError`, and `HostError` where there is no Hopper GPU."""
    from ..bench.gemm.run import GemmRun, passed, run_gemms
    from ..bench.host import Host

    run = GemmRun(points_of(points, given.recipe), given.artifacts, given.out, variants)
    host = Host.find()
    from ..bench.gemm.session import table

    path, records = run_gemms(run, host, lambda record: typer.echo(table(record)))
    typer.echo(f"wrote {path}")
    return path, all(map(passed, records))


def tune_gemms(points: str | None, given: RunOptions, compile_only: bool, files: list[Path], tables: Path) -> bool:
    """`megamoe tune` of GEMMs; whether every point ran and was right."""
    from ..artifact.cache import require_place
    from ..artifact.store import ArtifactError, dsl_version
    from ..bench.gemm.run import compile_candidates

    if not files:
        chosen, has_dsl = points_of(points, given.recipe), dsl_version() is not None
        if compile_only and not has_dsl:
            raise ArtifactError("nvidia-cutlass-dsl = None: must be installed to compile")
        if has_dsl:
            count = compile_candidates(chosen, given.artifacts, len(os.sched_getaffinity(0)))
            typer.echo(f"{count} candidates of {len(chosen)} points into {given.artifacts}")
        if compile_only:
            return True
        require_place("--tables", tables)
        path, well = bench_gemms(points, given, variants=True)
        enter([path], tables)
        return well
    if points is not None:
        raise ProblemError("--points", points, "left out with --from")
    enter(files, tables)
    return True


def enter(files: list[Path], folder: Path) -> None:
    """Winners of runs, one after the other, into the tables of their GPUs.  Raises `TableError`, `ResultsError`, and `ProblemError` where a
    table changes and cannot be written."""
    from ..artifact.cache import require_writable
    from ..bench.gemm.tuning import enter_run, read_run

    for file in files:
        gpu, records = read_run(file)
        before = Table.read(gpu, folder, GemmEntry)
        after = enter_run(before, file.name, records)
        changed = [one for one in after.entries if one not in before.entries]
        typer.echo(f"{file.name}: {len(changed)} of {len(records)} points have another entry")
        if changed:
            require_writable("--tables", folder)
            typer.echo(f"wrote {after.write(folder)}: {len(after.entries)} entries")

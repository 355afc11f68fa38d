"""`megamoe bench` and `megamoe tune` of the two halves of an expert-parallel layer, on GPUs of this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..options.points import RunOptions
from ..tuned import EpEntry, Table

if TYPE_CHECKING:
    from ..bench.ep_run import EpRun


def bench_ep(kernel: str, given: RunOptions, *, variants: bool, trace: bool = False) -> tuple[Path, bool]:
    """Times or traces both halves at all points, beside the fused kernel and its stages; with `variants` also what may be faster than the
    chosen configuration of `kernel`.  The results file, and whether every point ran and was right.

    Raises `ProblemError`, and `HostError` where there are too few Hopper GPUs."""
    from ..artifact.store import dsl_version
    from ..bench.ep_run import well
    from ..bench.host import Host

    run = run_of(kernel, given, variants, trace)
    host = Host.find()
    host.check(run.points)
    if dsl_version() is not None:
        run.compile(host, len(os.sched_getaffinity(0)))
    path, records = run.run(host, typer.echo)
    typer.echo(f"wrote {path}")
    return path, all(map(well, records))


def run_of(kernel: str, given: RunOptions, variants: bool, trace: bool = False) -> EpRun:
    """What the options ask for.  Raises `ProblemError`."""
    from ..artifact.cache import require_place
    from ..bench.ep_run import EpRun
    from ..bench.ep_tuning import CANDIDATES
    from ..bench.points import points_of

    points = tuple(points_of(given, given.remote, least_tokens=1))
    require_place("out", given.out)
    others = CANDIDATES[kernel] if variants else ()
    return EpRun(points, given.artifacts, given.out, others, trace, watchdog_ms=given.watchdog_ms)


def tune_ep(kernel: str, given: RunOptions, compile_only: bool, files: list[Path], tables: Path) -> bool:
    """`megamoe tune` of a half; whether every point ran and was right.  Raises as `bench_ep` does, and `ArtifactError` for
    `compile_only` without the DSL."""
    from ..artifact.cache import require_place
    from ..artifact.store import ArtifactError, dsl_version
    from ..bench.host import Host

    if files:
        enter(files, tables)
        return True
    if compile_only:
        if dsl_version() is None:
            raise ArtifactError("nvidia-cutlass-dsl = None: must be installed to compile")
        count = run_of(kernel, given, True).compile(Host.typical(), len(os.sched_getaffinity(0)))
        typer.echo(f"{count} kernels in {given.artifacts}")
        return True
    require_place("--tables", tables)
    path, right = bench_ep(kernel, given, variants=True)
    enter([path], tables)
    return right


def enter(files: list[Path], folder: Path) -> None:
    """What runs have found, one after the other, into the tables of their GPUs.  Raises `TableError`, `ResultsError`, and `ProblemError`
    where a table cannot be written."""
    from ..artifact.cache import require_writable
    from ..bench.ep_tuning import entered, read_run

    for file in files:
        before = Table.read(read_run(file)[0], folder, EpEntry)
        after = entered(before, file)
        if after != before:
            require_writable("--tables", folder)
            typer.echo(f"wrote {after.write(folder)}: {len(after.entries)} entries")

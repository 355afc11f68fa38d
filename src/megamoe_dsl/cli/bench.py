"""`megamoe bench` of the fused layer, its halves or a GEMM on this host's GPUs, and `megamoe tune` of the halves and of GEMMs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..bench.gemm.point import GemmPoint, find_points
from ..kernels.gemm.family import GemmKernel
from ..kernels.moe.family import MegaMoeKernel
from ..kernels.moe.halves.family import EP_KERNELS
from ..options.option import naming_options
from ..options.points import PROBLEM, BenchOptions, RunOptions, TuneOptions
from ..problem import ProblemError
from ..tuned import EpEntry, GemmEntry, Table
from .options import takes
from .tables import FAILED

SHAPE = ("preset", "hidden", "intermediate", "experts", "topk", "experts_per_rank", "tokens", "ranks", "remote")
HALVES = tuple(one.name for one in EP_KERNELS)
TAKEN: Mapping[str, tuple[str, ...]] = {
    GemmKernel.name: ("recipe", "artifacts", "out", "variants", "compile_only"),
    **dict.fromkeys(HALVES, (*SHAPE, "recipe", "artifacts", "out", "watchdog_ms", "variants", "trace", "compile_only")),
}
"""Options of a run that kernels take, where these are not all."""
TIMED = (MegaMoeKernel.name, *TAKEN)
NAMES = f"{', '.join(TIMED[:-1])} or {TIMED[-1]}"

KernelOption = Annotated[str, typer.Option("--kernel", help=f"{NAMES}.", rich_help_panel=PROBLEM)]
PointsOption = Annotated[
    str | None,
    typer.Option(
        "--points",
        metavar="TEXT,TEXT",
        help=f"Of --kernel {GemmKernel.name}: points by parts of their names, as in 512x2112x7168,packed.",
        rich_help_panel=PROBLEM,
        show_default="all",
    ),
]


def check_kernel(kernel: str, points: str | None, given: RunOptions) -> None:
    """Raises `ProblemError` for a kernel that is not timed, and for an option that does not go with it."""
    if kernel not in TIMED:
        raise ProblemError("--kernel", kernel, NAMES)
    if kernel != GemmKernel.name and points is not None:
        raise ProblemError("--points", points, f"left out with --kernel {kernel}")
    for one in fields(given) if kernel in TAKEN else ():
        value = getattr(given, one.name)
        if one.name not in TAKEN[kernel] and value != one.default:
            raise ProblemError(f"--{one.name.replace('_', '-')}", value, f"left out with --kernel {kernel}")


if TYPE_CHECKING:
    from ..bench.ep import EpRun


def bench_ep(kernel: str, given: RunOptions, *, variants: bool, trace: bool = False) -> tuple[Path, bool]:
    """Times or traces both halves at all points; with `variants` also what may be faster than the chosen configuration of `kernel`. The
    results file, and whether every point was right. Raises `ProblemError` and `HostError`."""
    from ..artifact.store import dsl_version
    from ..bench.ep import well
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
    from ..bench.ep import EpRun
    from ..bench.point import points_of
    from ..bench.tuning import CANDIDATES

    points = tuple(points_of(given, given.remote, least_tokens=1))
    require_place("out", given.out)
    others = CANDIDATES[kernel] if variants else ()
    return EpRun(points, given.artifacts, given.out, others, trace, watchdog_ms=given.watchdog_ms)


def gemm_points(text: str | None, recipe: str) -> tuple[GemmPoint, ...]:
    """Points of a recipe by parts of their names; all without a text.  Raises `ProblemError`."""
    return tuple(find_points(text.split(",") if text else [], recipe))


def bench_gemms(points: str | None, given: RunOptions, *, variants: bool) -> tuple[Path, bool]:
    """Times points, a table for each; the results file, and whether all were right. Raises `ProblemError` and `HostError`."""
    from ..bench.gemm.run import GemmRun, passed, run_gemms
    from ..bench.host import Host

    run = GemmRun(gemm_points(points, given.recipe), given.artifacts, given.out, variants)
    host = Host.find()
    from ..bench.gemm.session import table

    path, records = run_gemms(run, host, lambda record: typer.echo(table(record)))
    typer.echo(f"wrote {path}")
    return path, all(map(passed, records))


def tune_other(kernel: str, points: str | None, given: TuneOptions, files: list[Path], tables: Path) -> bool:
    """`megamoe tune` of a half or of GEMMs; whether every point was right. Raises also `ArtifactError` without the DSL."""
    from ..artifact.cache import require_place
    from ..artifact.store import ArtifactError, dsl_version
    from ..bench.gemm.run import compile_candidates
    from ..bench.host import Host

    if files:
        if points is not None:
            raise ProblemError("--points", points, "left out with --from")
        enter(kernel, files, tables)
        return True
    has_dsl, jobs = dsl_version() is not None, len(os.sched_getaffinity(0))
    if given.compile_only and not has_dsl:
        raise ArtifactError("nvidia-cutlass-dsl = None: must be installed to compile")
    if kernel == GemmKernel.name:
        chosen = gemm_points(points, given.recipe)
        if has_dsl:
            typer.echo(f"{compile_candidates(chosen, given.artifacts, jobs)} candidates of {len(chosen)} points into {given.artifacts}")
    elif given.compile_only:
        typer.echo(f"{run_of(kernel, given, True).compile(Host.typical(), jobs)} kernels in {given.artifacts}")
    if given.compile_only:
        return True
    require_place("--tables", tables)
    path, right = bench_gemms(points, given, variants=True) if kernel == GemmKernel.name else bench_ep(kernel, given, variants=True)
    enter(kernel, [path], tables)
    return right


def enter(kernel: str, files: list[Path], folder: Path) -> None:
    """Enters what runs have found into the tables of their GPUs. Raises `TableError`, `ResultsError` and `ProblemError`."""
    from ..artifact.cache import require_writable
    from ..bench.tuning import enter_ep_run, enter_gemm_run, read_ep_run, read_gemm_run

    for file in files:
        gpu, records = read_gemm_run(file) if kernel == GemmKernel.name else read_ep_run(file)
        before = Table.read(gpu, folder, GemmEntry if kernel == GemmKernel.name else EpEntry)
        after = (enter_gemm_run if kernel == GemmKernel.name else enter_ep_run)(before, file.name, records)
        changed = [one for one in after.entries if one not in before.entries]
        typer.echo(f"{file.name}: {len(changed)} of {len(records)} points have another entry")
        if changed:
            require_writable("--tables", folder)
            typer.echo(f"wrote {after.write(folder)}: {len(after.entries)} entries")


@takes(BenchOptions)
def bench(given: BenchOptions, kernel: KernelOption = MegaMoeKernel.name, points: PointsOption = None) -> None:
    """Check and time the fused layer, its two halves or a GEMM on real GPUs; print a line per point, save JSON.  Exit code 0: every point
    ran and was right.  1: one failed, was wrong or did not match.  2: bad input."""
    from ..bench.host import Host
    from ..bench.results import passed
    from ..bench.session import Session, run_session

    check_kernel(kernel, points, given)
    if kernel in HALVES:
        _, well = bench_ep(kernel, given, variants=given.variants, trace=given.trace)
    elif kernel == GemmKernel.name:
        _, well = bench_gemms(points, given, variants=given.variants)
    else:
        with naming_options(BenchOptions):
            found = run_session(Session.given(given), Host.find())
        well = all(passed(one) for one in found.records)
    if not well:
        raise typer.Exit(FAILED)

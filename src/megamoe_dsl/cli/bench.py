"""`megamoe bench` of the fused layer, its halves or a GEMM on this host's GPUs, and the runs of it that `megamoe tune` makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from ..bench.gemm.point import read_points
from ..kernels.gemm.family import GemmKernel
from ..kernels.moe.family import MegaMoeKernel
from ..kernels.moe.halves.family import EP_KERNELS
from ..options.option import leave_out
from ..options.points import PROBLEM, BenchOptions, RunOptions, TuneOptions
from ..problem import ProblemError
from .options import takes
from .tables import FAILED

if TYPE_CHECKING:
    from ..bench.ep import EpRun
    from ..bench.gemm.run import GemmRun
    from ..bench.session import Session

SHAPE = ("preset", "hidden", "intermediate", "experts", "topk", "experts_per_rank", "tokens", "ranks", "remote")
HALVES = tuple(one.name for one in EP_KERNELS)
TAKEN: Mapping[str, tuple[str, ...]] = {
    GemmKernel.name: ("recipe", "artifacts", "out", "variants", "compile_only"),
    **dict.fromkeys(HALVES, (*SHAPE, "recipe", "artifacts", "out", "watchdog_ms", "variants", "trace", "compile_only")),
}
"""By kernel, the options that it takes, where it does not take all."""
TIMED = (MegaMoeKernel.name, *TAKEN)
NAMES = f"{', '.join(TIMED[:-1])} or {TIMED[-1]}"

KernelOption = Annotated[str, typer.Option("--kernel", help=f"{NAMES}.", rich_help_panel=PROBLEM)]
PointsOption = Annotated[
    str | None,
    typer.Option(
        "--points",
        metavar="POINT,POINT",
        help=f"Points of --kernel {GemmKernel.name}, as in 512x2112x7168,packed 32x384x4096x4096.",
        rich_help_panel=PROBLEM,
    ),
]


def check_kernel(kernel: str, points: str | None, given: RunOptions) -> None:
    """Raises `ProblemError` for a kernel that is not timed, and for an option that does not go with it."""
    if kernel not in TIMED:
        raise ProblemError("--kernel", kernel, NAMES)
    if kernel != GemmKernel.name and points is not None:
        raise ProblemError("--points", points, f"left out with --kernel {kernel}")
    if kernel in TAKEN:
        leave_out(given, (one.name for one in fields(given) if one.name not in TAKEN[kernel]), f"--kernel {kernel}")


def run_of(kernel: str, points: str | None, given: BenchOptions | TuneOptions) -> Session | EpRun | GemmRun:
    """The run that the options describe; `megamoe tune` always times variants.  Raises `ProblemError`."""
    from ..bench.ep import EpRun
    from ..bench.gemm.run import GemmRun
    from ..bench.point import points_of
    from ..bench.session import Session
    from ..bench.tuning import CANDIDATES

    timed, layer = isinstance(given, BenchOptions), kernel == MegaMoeKernel.name
    variants, trace, graphs = (given.variants, given.trace, not given.no_graphs) if isinstance(given, BenchOptions) else (True, False, True)
    if kernel == GemmKernel.name:
        if points is None:
            raise ProblemError("--points", points, f"given with --kernel {kernel}")
        return GemmRun(tuple(read_points(points, given.recipe)), given.artifacts, given.out, variants)
    found = points_of(given, given.remote, least_tokens=0 if timed and layer else 1)
    if layer:
        return Session(found, given.artifacts, given.out, variants, graphs, trace, watchdog_ms=given.watchdog_ms)
    others = CANDIDATES[kernel] if variants else ()
    return EpRun(tuple(found), given.artifacts, given.out, others, trace, watchdog_ms=given.watchdog_ms)


@takes(BenchOptions)
def bench(given: BenchOptions, kernel: KernelOption = MegaMoeKernel.name, points: PointsOption = None) -> None:
    """Check and time the fused layer, its two halves or a GEMM on real GPUs; print a line per point, save JSON.  Exit code 0: every point
    ran and was right.  1: one failed, was wrong or did not match.  2: bad input."""
    from ..bench.host import Host

    check_kernel(kernel, points, given)
    run = run_of(kernel, points, given)
    found = run.run(Host.find())
    if not all(map(run.right, found.records)):
        raise typer.Exit(FAILED)

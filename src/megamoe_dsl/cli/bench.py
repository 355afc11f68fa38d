"""`megamoe bench`: times the fused layer, its halves or a GEMM on this host's GPUs."""

from __future__ import annotations

import typer

from ..kernels.gemm.family import GemmKernel
from ..kernels.moe.family import MegaMoeKernel
from ..options.option import naming_options
from ..options.points import BenchOptions
from .bench_ep import bench_ep
from .bench_gemm import bench_gemms
from .options import takes
from .timed_kernel import HALVES, KernelOption, PointsOption, check_kernel

FAILED = 1


@takes(BenchOptions)
def bench(given: BenchOptions, kernel: KernelOption = MegaMoeKernel.name, points: PointsOption = None) -> None:
    """Check and time the fused layer, its two halves or a GEMM on real GPUs; print a line per point, save JSON.

    Exit code 0: every point ran and was right.  1: one failed, was wrong or did not match.  2: bad input.
    """
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

"""`megamoe bench`: times the fused layer, its halves or a GEMM on this host's GPUs, beside the baseline."""

from __future__ import annotations

from pathlib import Path

import typer

from ..bench.point_options import BenchOptions
from ..kernels.gemm.family import GemmKernel
from ..kernels.moe.family import MegaMoeKernel
from .bench_ep import bench_ep
from .bench_gemm import bench_gemms
from .errors import one_line_errors
from .options import takes
from .timed_kernel import HALVES, KernelOption, PointsOption, check_kernel

FAILED = 1


@takes(BenchOptions)
def bench(given: BenchOptions, kernel: KernelOption = MegaMoeKernel.name, points: PointsOption = None) -> None:
    """Check and time the fused layer, its two halves or a GEMM on real GPUs; print a line per point, save JSON.

    Exit code 0: every point ran and was right.  1: one failed, was wrong or did not match.  2: bad input.
    """
    with one_line_errors():
        from ..bench.arguments import run_options
        from ..bench.passed import passed

        check_kernel(kernel, points, given)
        if kernel in HALVES:
            _, well = bench_ep(kernel, given, variants=given.variants, trace=given.trace)
        elif kernel == GemmKernel.name:
            baseline = None if given.baseline is None else Path(given.baseline)
            _, well = bench_gemms(points, given, variants=given.variants, baseline=baseline)
        else:
            well = all(passed(one) for one in run_options(given).records)
    if not well:
        raise typer.Exit(FAILED)

"""`megamoe bench`: times the fused layer or a GEMM on this host's GPUs, beside the baseline."""

from __future__ import annotations

from pathlib import Path

import typer

from ..bench.point_options import BenchOptions
from ..kernels.mega_moe.family import MegaMoeKernel
from .bench_gemm import KernelOption, PointsOption, bench_gemms, is_gemm
from .errors import one_line_errors
from .options import takes

FAILED = 1


@takes(BenchOptions)
def bench(given: BenchOptions, kernel: KernelOption = MegaMoeKernel.name, points: PointsOption = None) -> None:
    """Check and time the fused layer or a GEMM on real GPUs; print a line per point, save JSON.

    Exit code 0: every point ran and was right.  1: one failed, was wrong or did not match.  2: bad input.
    """
    with one_line_errors():
        from ..bench.arguments import run_options
        from ..bench.passed import passed

        if is_gemm(kernel, points, given):
            baseline = None if given.baseline is None else Path(given.baseline)
            _, well = bench_gemms(points, given, variants=given.variants, baseline=baseline)
        else:
            well = all(passed(one) for one in run_options(given).records)
    if not well:
        raise typer.Exit(FAILED)

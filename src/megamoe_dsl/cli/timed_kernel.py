"""Which kernels `megamoe bench` and `megamoe tune` time, and which options go with each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated

import typer

from ..kernels.gemm.family import GemmKernel
from ..kernels.moe.family import MegaMoeKernel
from ..kernels.moe.halves.family import EP_KERNELS
from ..options.points import PROBLEM, RunOptions
from ..problem import ProblemError

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

"""What the roles and tensor maps of the GEMM get for arguments: the same for a launch, a kernel and the driver."""

from __future__ import annotations

from typing import Any

from ....blocks.gemm.arguments import GemmArguments
from .config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from .layouts.pool import pool_rows
from .layouts.symmetric import PER_LAUNCH, EpLaunch, symmetric_buffer


def sym_address(config: EpConfig, base: Any, name: str, launch: EpLaunch) -> Any:
    """Address of a field of the symmetric buffer at `base`."""
    index = (int(launch),) if name in PER_LAUNCH else ()
    return symmetric_buffer(config.problem, config.keeps).address(base, name, *index)


def combine_gemm_arguments(config: GemmCombineConfig, args: Any) -> GemmArguments:
    """Linear2: results to the symmetric buffer, where nobody stores by rows if the epilogue sends them; `args` has the fields of
    `GemmCombineArguments`, traced or integers."""
    rows: Any = pool_rows(config.problem)
    no_groups: Any = 0
    names = ("kept" if config.keeps else "results", "tile_counter")
    results, counter = (sym_address(config, args.sym, name, EpLaunch.COMBINE) for name in names)
    return GemmArguments(args.acts, args.acts_sf, args.weights, args.weights_sf, results, no_groups, counter, rows, rows)


def dispatch_gemm_arguments(config: DispatchGemmConfig, args: Any) -> GemmArguments:
    """Linear1: rows of the symmetric buffer; `args` has the fields of `DispatchGemmArguments`, traced or integers."""
    rows: Any = pool_rows(config.problem)
    no_groups: Any = 0  # where rows of experts lie is in the table that the scheduler makes
    acts, counter = (sym_address(config, args.sym, name, EpLaunch.DISPATCH) for name in ("fc1_acts", "tile_counter"))
    no_scales: Any = 0
    scales = sym_address(config, args.sym, "fc1_sf", EpLaunch.DISPATCH) if config.problem.formats.scaled else no_scales
    return GemmArguments(acts, scales, args.weights, args.weights_sf, args.out, no_groups, counter, rows, rows)

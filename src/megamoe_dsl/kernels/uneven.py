"""Tiles of Linear2, a packed GEMM, for rows that a router has dealt out: as many on average, and of one expert more, of another fewer.

A tile should hold nearly every expert's rows, or a whole number of tiles should waste little of the last.  Measured on an H200
(docs/lab/one_gpu.md, "Tiles of Linear2"); on SM100, where nothing is, the first alone is asked for.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from ..blocks.gemm.base_config import BaseGemmConfig
from ..blocks.gemm.choose import burst_of, unscaled
from ..blocks.gemm.config import MOST_SWAPPED_ROWS, GemmConfig
from ..blocks.gemm.problem import ROW_BLOCK, GemmProblem
from ..blocks.gemm.sm100.config import Sm100GemmConfig, tile_rows
from ..layouts.arith import align
from ..target import Target

FEWEST_ROWS = 16
SPREAD = 2.5
"""Standard deviations of a binomial number of rows that a tile has room for."""
LONG_K = 8
"""K blocks from which on what is multiplied counts for more than what is stored."""


def uneven_config(problem: GemmProblem, target: Target, rows: int) -> BaseGemmConfig:
    """The configuration for so many rows of all experts together.  Raises `ProblemError` and `ConfigError`."""
    if target.arch.has_tensor_memory:
        return Sm100GemmConfig.choose(problem, target, rows, dynamic_schedule=True, **uneven_pair_tile(problem, rows))
    # Linear1 is a launch of blocks/gemm/gather, and where rows lie is said by the one before it.
    own: dict[str, Any] = {"num_sms": target.num_sms, "dynamic_schedule": True, "prefetch_weights": True}
    return GemmConfig(problem, **own, **uneven_tile(problem, problem.check_rows(rows)))


def room(problem: GemmProblem, rows: int) -> float:
    """Rows that nearly every expert has no more than."""
    mean = rows / problem.num_groups
    return mean + SPREAD * sqrt(mean)


def uneven_pair_tile(problem: GemmProblem, rows: int) -> dict[str, Any]:
    """Fields of the least tile of SM100 that has room for an expert's rows; none where there is no such tile."""
    most = room(problem, rows)
    return next(({"block_m": block_m} for block_m in tile_rows(problem) if block_m >= most), {})


def uneven_tile(problem: GemmProblem, rows: int) -> dict[str, Any]:
    """Fields of the tile, and how it is multiplied."""
    mean = rows / problem.num_groups
    block_m = max(align(int(room(problem, rows)), 8), FEWEST_ROWS)
    if block_m <= MOST_SWAPPED_ROWS:
        few = {"block_m": block_m, "block_n": 128, "swap_ab": True, "k_in_flight": 2, "burst": burst_of(problem)}
        return few if problem.formats.scaled else unscaled(few)
    if not problem.formats.scaled:
        return {"block_m": 128, "block_n": 256}
    if problem.k_blocks >= LONG_K:
        return {"block_m": 128, "block_n": 256, "half_tiles": True, "epilogue_buffers": 1}
    return {"block_m": 192, "block_n": 128} if mean > ROW_BLOCK else {"block_m": 128, "block_n": 256}

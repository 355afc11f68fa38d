"""Tiles of Linear2 on SM90 for rows that a router has dealt out: as many on average, and of one expert more, of another fewer.

A tile should hold nearly every expert's rows, or a whole number of tiles should waste little of the last.  Measured on an H200
(docs/gather_gemm.md, "Tiles of Linear2").
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from ...layouts.arith import align
from ...target import Target
from ..gemm.choose import unscaled
from ..gemm.config import MOST_SWAPPED_ROWS, GemmConfig
from ..gemm.problem import ROW_BLOCK, GemmProblem

FEWEST_ROWS = 16
SPREAD = 2.5
"""Standard deviations of a binomial number of rows that a tile has room for."""
LONG_K = 8
"""K blocks from which on what is multiplied counts for more than what is stored."""


def uneven_config(problem: GemmProblem, target: Target, rows: int) -> GemmConfig:
    """The configuration for so many rows of all experts together.  Raises `ProblemError` and `ConfigError`."""
    return GemmConfig(problem, num_sms=target.num_sms, dealt=True, **uneven_tile(problem, problem.check_rows(rows)))


def uneven_tile(problem: GemmProblem, rows: int) -> dict[str, Any]:
    """Fields of the tile, and how it is multiplied."""
    mean = rows / problem.num_groups
    block_m = max(align(int(mean + SPREAD * sqrt(mean)), 8), FEWEST_ROWS)
    if block_m <= MOST_SWAPPED_ROWS:
        few = {"block_m": block_m, "block_n": 128, "swap_ab": True, "ahead": 2}
        return few if problem.formats.scaled else unscaled(few)
    if not problem.formats.scaled:
        return {"block_m": 128, "block_n": 256}
    if problem.k_blocks >= LONG_K:
        return {"block_m": 128, "block_n": 256, "halves": True, "boxes": 1}
    return {"block_m": 192, "block_n": 128} if mean > ROW_BLOCK else {"block_m": 128, "block_n": 256}

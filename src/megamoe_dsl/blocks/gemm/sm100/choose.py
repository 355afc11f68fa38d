"""Which tile: what a rough estimate of clocks finds best.  Nobody has measured this kernel yet."""

from __future__ import annotations

from typing import Any

from ....hardware.cta_pair import PAIR_ROWS
from ....layouts.arith import align
from ..problem import CONTIGUOUS, ROW_BLOCK, GemmProblem

ROWS_PER_UNIT = 16
"""Of A, by 256 of B and 128 of K: the unit of time, about 32 clocks of a pair with 8192 products an SM and clock."""
LATENCY = 4  # units of a K block, however few rows it has: 256 rows of B come from L2 meanwhile
EPILOGUE = 24  # units of a tile, and as many again for every 192 rows


def choose_pair_fields(problem: GemmProblem, pairs: int, rows: int, tiles: list[int]) -> dict[str, Any]:
    """Fields of a configuration for `rows` rows of A, equally many of each group; the tile is one of `tiles`."""
    step = ROW_BLOCK if problem.kind == CONTIGUOUS else 1  # to which a group's rows are padded
    expected = align(-(-max(rows, 1) // problem.num_groups), step)
    estimates = [cost(problem, expected, block_m, pairs) for block_m in tiles]
    return {"block_m": tiles[estimates.index(min(estimates))]}


def cost(problem: GemmProblem, expected: int, block_m: int, pairs: int) -> float:
    """The estimate for so many rows of each group."""
    count = problem.num_groups * -(-expected // block_m) * -(-problem.n // PAIR_ROWS)
    covered = min(block_m, -(-expected // 16) * 16)
    per_block = max(covered / ROWS_PER_UNIT, LATENCY)
    return -(-count // max(pairs, 1)) * (problem.k_blocks * per_block + EPILOGUE * (1 + covered / 192))

"""How many rows the token pool of a layer needs on SM90 so that dispatch does not wait for them."""

from __future__ import annotations

from dataclasses import replace

from ....layouts.arith import align
from ....problem import POOL_GRANULE, Problem
from ..layouts.pool import most_blocks
from .config import choose_block_m, expected_blocks

LARGEST = 60  # blocks of 128 tokens: what a ring takes at most (docs/hopper.md)


def choose_pool_rows(problem: Problem) -> int:
    """`pool_rows` of a layer for `problem.max_tokens_per_rank` tokens on every rank, in tiles as the heuristics choose them.

    An eighth more than the blocks that uniform routing fills, if that is no more than `LARGEST` blocks of 128 tokens: then rows are used
    again only where routing is skewed.  And no more than any routing needs.
    """
    expected = problem.expected_tokens_per_expert(problem.max_tokens_per_rank)
    block_m = choose_block_m(problem, expected)
    filled = problem.experts_per_rank * expected_blocks(expected, block_m)
    rows = min((filled + filled // 8) * block_m, LARGEST * POOL_GRANULE, most_blocks(problem, block_m) * block_m)
    return align(rows, POOL_GRANULE)


def with_pool_rows(problem: Problem, rows: int | None) -> Problem:
    """The problem with so many pool rows, 0 for as many as `choose_pool_rows` says.  Raises `ProblemError`."""
    return replace(problem, pool_rows=choose_pool_rows(problem) if rows == 0 else rows)

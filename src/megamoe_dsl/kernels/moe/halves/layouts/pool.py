"""Rows of the received tokens: sorted by expert, and every expert's begin at a multiple of 128."""

from __future__ import annotations

from .....layouts.arith import Int, align, ceil_div
from .....problem import Problem

ROW_BLOCK = 128
"""Rows: a whole number of tiles of every height.  What a tile reads beyond its expert's rows belongs to nobody."""


def pool_rows(problem: Problem) -> int:
    """Rows that hold any routing: every token of every rank on as many local experts as top-k allows."""
    received = problem.num_ranks * problem.max_tokens_per_rank * problem.max_experts_per_token
    return (received + problem.experts_per_rank * (ROW_BLOCK - 1)) // ROW_BLOCK * ROW_BLOCK


def padded_rows(rows: Int) -> Int:
    """That an expert with so many rows takes."""
    return ceil_div(rows, ROW_BLOCK) * ROW_BLOCK


def first_rows(rows: list[int]) -> list[int]:
    """First row of each local expert, of which these are the rows, and one entry more: the rows in use."""
    first = [0]
    for count in rows:
        first.append(first[-1] + align(count, ROW_BLOCK))
    return first

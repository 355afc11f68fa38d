"""What stages leave for one another beside the symmetric buffer, on one rank: the fused kernel keeps it on the chip or sends it away."""

from __future__ import annotations

from functools import lru_cache

from ....layouts.region import BF16, Field, Region
from ....problem import Problem
from ..layouts.pool import pool_tokens
from ..layouts.symmetric import TMA_ALIGNMENT


@lru_cache
def stage_results(problem: Problem) -> Region:
    """P = pool rows, H = hidden, I = intermediate.

    | field   | shape         | written by | read by |
    |---|---|---|---|
    | fc1_out | bf16 [P, 2 I] | Linear1    | SwiGLU; columns in the order of the weights' rows |
    | fc2_out | bf16 [P, H]   | Linear2    | combine |
    """
    pool = pool_tokens(problem)
    return Region.stack(
        "results",
        Field("fc1_out", (pool, 2 * problem.intermediate), BF16, TMA_ALIGNMENT),
        Field("fc2_out", (pool, problem.hidden), BF16, TMA_ALIGNMENT),
    )

"""The token pool: where an expert's received tokens lie, block by block (article 3.2.1.2).

A pool that has rows for any routing is *whole*.  One with fewer is a ring: token blocks have places in the order of experts all the same,
and place p has the rows of place p modulo the ring's blocks (schedule/ring.py).
"""

from __future__ import annotations

from math import lcm

from ....arch import Arch
from ....hardware.operand_tile import SF_ATOM_ROWS
from ....layouts.arith import align
from ....problem import Problem
from ....recipe import E2M1, E4M3, Recipe

CANDIDATE_BLOCK_M = (8, 16, 32, 64, 96, 128, 192)
POOL_ALIGNMENT = lcm(*CANDIDATE_BLOCK_M)  # 384: a whole number of blocks whatever block_m is
SMALLEST_TIER = {E4M3: 16, E2M1: 32}
"""The smallest block_m in use on SM100, by the element of the tokens.  One CTA's half of a block has to fill the 1024 bytes that a stage's
operands are aligned to: 8 rows of 128 bytes, or 16 of 64."""


def pool_capacity(*, num_ranks: int, max_tokens_per_rank: int, topk: int, experts_per_rank: int) -> int:
    """Rows that hold any routing: every token of every rank, on as many local experts as top-k allows, each expert padded to a block."""
    tokens = num_ranks * max_tokens_per_rank * min(topk, experts_per_rank)
    return align(tokens + experts_per_rank * (max(CANDIDATE_BLOCK_M) - 1), POOL_ALIGNMENT)


def whole_pool(problem: Problem) -> int:
    """Rows of a pool that holds any routing."""
    return pool_capacity(
        num_ranks=problem.num_ranks,
        max_tokens_per_rank=problem.max_tokens_per_rank,
        topk=problem.topk,
        experts_per_rank=problem.experts_per_rank,
    )


def pool_tokens(problem: Problem) -> int:
    """Rows of a rank's token pool."""
    whole = whole_pool(problem)
    return whole if problem.pool_rows is None else min(problem.pool_rows, whole)


def is_ring(problem: Problem) -> bool:
    """Whether some routing does not fit in the pool."""
    return pool_tokens(problem) < whole_pool(problem)


def most_blocks(problem: Problem, block_m: int) -> int:
    """Token blocks that any routing needs at most."""
    tokens = problem.num_ranks * problem.max_tokens_per_rank * problem.max_experts_per_token
    return (tokens + problem.experts_per_rank * (block_m - 1)) // block_m


def ring_blocks(problem: Problem, block_m: int) -> int:
    """Blocks of the ring that the pool is for tiles of so many tokens; 0 if all that they can need has rows of its own."""
    blocks = pool_tokens(problem) // block_m
    return blocks if blocks < most_blocks(problem, block_m) else 0


def smallest_block_m(arch: Arch, recipe: Recipe) -> int:
    """The smallest tile in use on an architecture for a recipe."""
    return SMALLEST_TIER[recipe.activations.element] if arch.has_tensor_memory else CANDIDATE_BLOCK_M[0]


def max_pool_blocks(capacity: int, arch: Arch, recipe: Recipe) -> int:
    """Blocks of the smallest tile."""
    return capacity // smallest_block_m(arch, recipe)


def padded_sf_rows(capacity: int, recipe: Recipe) -> int:
    """Scale words per K block, enough for every block_m: each block of up to 128 rows takes a whole atom, so the smallest block needs
    most."""
    smallest = SMALLEST_TIER[recipe.activations.element]
    return max(capacity // m * align(m, SF_ATOM_ROWS) for m in CANDIDATE_BLOCK_M if m >= smallest)


def pool_blocks(tokens_per_expert: list[int], block_m: int) -> list[int]:
    """First pool block of each expert, and one entry more: the number of blocks in use."""
    first = [0]
    for tokens in tokens_per_expert:
        first.append(first[-1] + -(-tokens // block_m))
    return first

"""The token pool: where an expert's received tokens lie, block by block (article 3.2.1.2)."""

from __future__ import annotations

from math import lcm

from ....arch import Arch
from ....hardware.scale_factors import SF_ATOM_ROWS
from ....layouts.arith import align

CANDIDATE_BLOCK_M = (8, 16, 32, 64, 96, 128, 192)
POOL_ALIGNMENT = lcm(*CANDIDATE_BLOCK_M)  # 384: a whole number of blocks whatever block_m is
SMALLEST_TIER = 16  # the smallest block_m in use on SM100


def pool_capacity(*, num_ranks: int, max_tokens_per_rank: int, topk: int, experts_per_rank: int) -> int:
    """Rows that hold any routing: every token of every rank, on as many local experts as top-k allows, each expert padded to a block."""
    tokens = num_ranks * max_tokens_per_rank * min(topk, experts_per_rank)
    return align(tokens + experts_per_rank * (max(CANDIDATE_BLOCK_M) - 1), POOL_ALIGNMENT)


def smallest_block_m(arch: Arch) -> int:
    """Of the tiles in use on an architecture."""
    return SMALLEST_TIER if arch.has_tensor_memory else CANDIDATE_BLOCK_M[0]


def max_pool_blocks(capacity: int, arch: Arch) -> int:
    """Blocks of the smallest tile."""
    return capacity // smallest_block_m(arch)


def padded_sf_rows(capacity: int) -> int:
    """Scale words per K block, enough for every block_m: each block of up to 128 rows takes a whole atom, so the smallest block needs
    most."""
    return max(capacity // m * align(m, SF_ATOM_ROWS) for m in CANDIDATE_BLOCK_M if m >= SMALLEST_TIER)


def pool_blocks(tokens_per_expert: list[int], block_m: int) -> list[int]:
    """First pool block of each expert, and one entry more: the number of blocks in use."""
    first = [0]
    for tokens in tokens_per_expert:
        first.append(first[-1] + -(-tokens // block_m))
    return first

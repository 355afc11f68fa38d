"""The control words of one rank, at the start of its symmetric buffer (article 3.3.1).

Zero before the first launch; every launch leaves it zero again, except for the grid and rank barriers, which carry their phase on.

| field                 | meaning |
|---|---|
| grid_sync             | one counter per set of warps that synchronises over the grid: bit 31 flips when all CTAs have arrived |
| rank_signal           | one counter per rank barrier, grows by num_ranks a launch |
| rank_epoch            | launches that have passed each rank barrier; read and written by SM 0 only |
| expert_send_count     | high word: SMs that reported; low word: tokens of this rank for that expert; the low word is also the ticket |
| expert_recv_count     | tokens that a source rank sends to a local expert |
| expert_recv_count_sum | complete when the high word is num_sms * num_ranks; low word: tokens over all ranks |
| l1_arrival_count      | tokens of a pool block whose data is in the pool |
| l2_arrival_mask       | bit n: 64 intermediate channels [64 n, 64 n + 64) of the block's activations are in the pool |
| src_token_topk_idx    | token * topk + slot at the source.  A token names an expert once, so a rank sends at most T tokens to it (the article reserves R * T) |
| token_src_metadata    | address of the combine row that a pool token's result goes to.  The article keeps rank, token and slot (12 bytes); the address is what |
|                       | the epilogue needs, and finding it once per token in dispatch spares every L2 tile the look-up |
"""

from __future__ import annotations

from enum import IntEnum

from ..problem import Problem
from .pool import max_pool_blocks, pool_capacity
from .region import U32, U64, Field, Region


class GridBarrier(IntEnum):
    """Users of a grid-wide barrier; each has its own counter."""

    DISPATCH = 0
    EPILOGUE = 1


class RankBarrier(IntEnum):
    """Cross-rank barriers of one launch; each has its own signal, so they may overlap."""

    BEFORE_PULL = 0
    BEFORE_COMBINE = 1
    AFTER_CLEAN = 2


def pool_tokens(problem: Problem) -> int:
    return pool_capacity(
        num_ranks=problem.num_ranks,
        max_tokens_per_rank=problem.max_tokens_per_rank,
        topk=problem.topk,
        experts_per_rank=problem.experts_per_rank,
    )


def workspace(problem: Problem) -> Region:
    """The workspace of one rank."""
    local, ranks, pool = problem.experts_per_rank, problem.num_ranks, pool_tokens(problem)
    blocks = max_pool_blocks(pool)
    return Region.stack(
        "workspace",
        Field("grid_sync", (len(GridBarrier),), U32),
        Field("rank_signal", (len(RankBarrier),), U32),
        Field("rank_epoch", (len(RankBarrier),), U32),
        Field("expert_send_count", (problem.num_experts,), U64),
        Field("expert_recv_count", (ranks, local), U64),
        Field("expert_recv_count_sum", (local,), U64),
        Field("l1_arrival_count", (blocks,), U32),
        Field("l2_arrival_mask", (blocks,), U64),
        Field("src_token_topk_idx", (local, ranks, problem.max_tokens_per_rank), U32),
        Field("token_src_metadata", (pool,), U64),
    )

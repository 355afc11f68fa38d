"""The control words of one rank, at the start of its symmetric buffer (article 3.3.1).

Zero before the first launch; every launch leaves it zero again, except for what only grows: the barrier counters, the epoch, and the sums
of counts with what has been seen of them.

| field                 | meaning |
|---|---|
| launch_epoch          | launches so far; SM 0 adds one when all CTAs have read it |
| grid_arrivals         | one counter per rank barrier: CTAs that arrived, over all launches; only SM 0 waits for it |
| rank_signal           | one counter per rank barrier: ranks that arrived, over all launches; every CTA waits for it |
| tile_counter          | tile numbers that clusters have fetched, beyond the first of each (schedule) |
| expert_send_count     | tokens of this rank for that expert; also the counter that CTAs reserve slots by |
| expert_recv_count     | tokens that a source rank sends to a local expert; not zero between launches, each rank replaces its own |
| expert_recv_count_sum | over all launches; low word: tokens; high word: reports of ranks, each sent after the rank's indices and counts |
| expert_counts_seen    | the part of expert_recv_count_sum that earlier launches of this rank have used: the rest belongs to this launch |
| fc1_arrival_count      | tokens of a pool block whose data is in the pool |
| fc2_arrival            | bit n: the n-th 64 (SM90: 128) channels of the block's activations are there; of more than 64 parts: how many |
| fc2_read_count         | of a pool that is a ring: epilogue warps that have read what a Linear2 tile of the block needs of the pool |
| src_token_topk_idx    | token * topk + slot at the source |
| token_src_metadata    | address of the combine row that a pool token's result goes to |

A token names an expert once, so a rank sends at most T tokens to it: src_token_topk_idx is [El, R, T] (the article reserves R * T).
For token_src_metadata the article keeps rank, token and slot (12 bytes); the address is what the epilogue needs, and finding it once per
token in dispatch spares every Linear2 tile the look-up.

A rank barrier of launch n (from 0) is passed when its counters reach (n + 1) times the number of CTAs, and of ranks.  The counters only
grow (modulo 2^32), so no barrier needs a phase bit, and the release of the grid needs no second round: all CTAs watch `rank_signal`
themselves (the article synchronizes the grid before and after an exchange between SM 0s).
Every launch on a buffer therefore has the same number of CTAs; the tier may change.

No barrier ends a launch.  A rank that has finished may start its next launch, and send indices and counts to ranks that still combine.
That is safe: those ranks have passed BEFORE_COMBINE, after which no launch reads indices and counts, and their next launch takes from the
grown sum only what exceeds `expert_counts_seen`.  The early rank cannot go further: nobody pulls before all ranks have reported.
"""

from __future__ import annotations

from enum import IntEnum

from ....arch import Arch
from ....layouts.region import U32, U64, Field, Region
from ....problem import Problem
from .pool import is_ring, max_pool_blocks, pool_tokens, whole_pool

ONE_REPORT = 1 << 32
"""In the high word of an expert's sum of counts: one more rank has reported."""


class RankBarrier(IntEnum):
    """Barriers of one launch; each has counters of its own, so they may overlap.  BEFORE_COMBINE joins all CTAs of all ranks.  At
    BEFORE_PULL only SM 0 waits, for the CTAs of its rank, and when tokens are few it does not (exchange_counts.py); what tells the other
    ranks to pull are the counts that SM 0 sends after it."""

    BEFORE_PULL = 0
    BEFORE_COMBINE = 1


def workspace(problem: Problem, arch: Arch) -> Region:
    """The workspace of one rank.  Blocks of a ring count as those of a whole pool: each place has counters of its own."""
    local, ranks = problem.experts_per_rank, problem.num_ranks
    blocks = max_pool_blocks(whole_pool(problem), arch, problem.formats)
    return Region.stack(
        "workspace",
        Field("launch_epoch", (1,), U32),
        Field("grid_arrivals", (len(RankBarrier),), U32),
        Field("rank_signal", (len(RankBarrier),), U32),
        Field("tile_counter", (1,), U32),
        Field("expert_send_count", (problem.num_experts,), U32),
        Field("expert_recv_count", (ranks, local), U64),
        Field("expert_recv_count_sum", (local,), U64),
        Field("expert_counts_seen", (local,), U64),
        Field("fc1_arrival_count", (blocks,), U32),
        Field("fc2_arrival", (blocks,), U64),
        *((Field("fc2_read_count", (blocks,), U32),) if is_ring(problem) else ()),
        Field("src_token_topk_idx", (local, ranks, problem.max_tokens_per_rank), U32),
        Field("token_src_metadata", (pool_tokens(problem),), U64),
    )

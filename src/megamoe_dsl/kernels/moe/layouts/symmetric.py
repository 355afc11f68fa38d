"""The symmetric buffer of one rank: workspace, inputs, pool and combine rows at the same offsets on every rank (article 3.3.2).

The token pool holds the tokens that an expert has received, block by block (article 3.2.1.2).  A *whole* pool has rows for any routing; a
smaller one is a ring, in which the block at place p, in the order of experts, uses the rows of p modulo the ring's blocks.

The workspace, at the start, holds the rank's control words (article 3.3.1).  They are zero before the first launch and after every launch,
except for those that only grow: barrier counters, the epoch, and the sums of counts.  Barrier counters grow by the number of CTAs
(blocks/rank_barrier.py), so all launches on a buffer have the same number of CTAs; the tile may change.

No barrier ends a launch.  A rank that has finished may start its next launch, and send indices and counts to ranks that still combine:
these have passed BEFORE_COMBINE and read neither any more, and their next launch uses only what the sum exceeds `expert_counts_seen` by.
The early rank goes no further, because dispatch pulls nothing before all ranks have reported.
"""

from __future__ import annotations

from functools import lru_cache
from math import lcm

from ....arch import Arch
from ....config_error import as_integer, require
from ....hardware.operand_tile import CHANNELS_PER_WORD, SF_ATOM_ROWS
from ....layouts.arith import align
from ....layouts.region import BF16, F32, I64, U8, U32, U64, Field, Region
from ....layouts.region import E4M3 as E4M3_CODES
from ....problem import Problem
from ....recipe import BITS, E2M1, E4M3, UE4M3, UE8M0, UNSCALED, Format, Recipe
from ....recipe import F32 as SCALE_F32
from .smem_plan import CombineRow, RankBarrier

CANDIDATE_BLOCK_M = (8, 16, 32, 64, 96, 128, 192)
POOL_ALIGNMENT = lcm(*CANDIDATE_BLOCK_M)  # 384: a whole number of blocks whatever block_m is
POOL_GRANULE = 128  # rows of a pool that is limited: a whole number of token blocks of every size
SMALLEST_TIER = {E4M3: 16, E2M1: 32, UNSCALED.element: 16}
"""The smallest block_m in use on SM100, by the element of the tokens.  One CTA's half of a block has to fill the 1024 bytes that a stage's
operands are aligned to: 8 rows of 128 bytes, or 16 of 64."""


def whole_pool(problem: Problem) -> int:
    """Rows that hold any routing: every token of every rank, on as many local experts as top-k allows, each expert padded to a block."""
    return align(problem.most_received + problem.experts_per_rank * (max(CANDIDATE_BLOCK_M) - 1), POOL_ALIGNMENT)


def checked_pool_rows(pool_rows: object) -> int | None:
    """So many, or None for a whole pool.  Raises `ConfigError` for what is no whole number of blocks."""
    rows = as_integer(pool_rows)
    good = pool_rows is None or (rows is not None and rows > 0 and rows % POOL_GRANULE == 0)
    require(good, "pool_rows", pool_rows, f"None or a multiple of {POOL_GRANULE}")
    return rows


def pool_tokens(problem: Problem, pool_rows: int | None = None) -> int:
    """Rows of a rank's token pool: for any routing, or at most `pool_rows`."""
    return min(pool_rows or whole_pool(problem), whole_pool(problem))


def is_ring(problem: Problem, pool_rows: int | None) -> bool:
    """Whether some routing does not fit in the pool."""
    return pool_tokens(problem, pool_rows) < whole_pool(problem)


def most_blocks(problem: Problem, block_m: int) -> int:
    """Token blocks that any routing needs at most."""
    return (problem.most_received + problem.experts_per_rank * (block_m - 1)) // block_m


def smallest_block_m(arch: Arch, recipe: Recipe) -> int:
    """The smallest tile in use on an architecture for a recipe."""
    return SMALLEST_TIER[recipe.activations.element] if arch.has_tensor_memory else CANDIDATE_BLOCK_M[0]


def padded_sf_rows(capacity: int, recipe: Recipe) -> int:
    """Scale words per K block, enough for every block_m: each block of up to 128 rows takes a whole atom, so the smallest needs most."""
    smallest = SMALLEST_TIER[recipe.activations.element]
    return max(capacity // m * align(m, SF_ATOM_ROWS) for m in CANDIDATE_BLOCK_M if m >= smallest)


def workspace(problem: Problem, arch: Arch, pool_rows: int | None = None) -> Region:
    """The workspace of one rank.  Blocks of a ring count as those of a whole pool: each place has counters of its own."""
    local, ranks = problem.experts_per_rank, problem.num_ranks
    blocks = whole_pool(problem) // smallest_block_m(arch, problem.formats)
    return Region.stack(
        "workspace",
        Field("launch_epoch", (1,), U32),  # launches so far; SM 0 adds one when all CTAs have read it
        Field("grid_arrivals", (len(RankBarrier),), U32),  # CTAs that arrived, over all launches; only SM 0 waits for it
        Field("rank_signal", (len(RankBarrier),), U32),  # ranks that arrived, over all launches; every CTA waits for it
        Field("tile_counter", (1,), U32),  # tile numbers that clusters have fetched, beyond the first of each (schedule)
        Field("expert_send_count", (problem.num_experts,), U32),  # of this rank's tokens; CTAs reserve slots by it
        Field("expert_recv_count", (ranks, local), U64),  # tokens from each rank; not zero between launches, each replaces its own
        # Over all launches; low word: tokens; high word: reports of ranks, each sent after the rank's indices and counts.
        Field("expert_recv_count_sum", (local,), U64),
        Field("expert_counts_seen", (local,), U64),  # what earlier launches of this rank have used of that: the rest is this launch's
        Field("fc1_arrival_count", (blocks,), U32),  # tokens of a pool block whose data is in the pool
        # Bit n: the n-th 64 (SM90: 128) channels of the block's activations are there; of more than 64 parts: how many.
        Field("fc2_arrival", (blocks,), U64),
        # Epilogue warps that have read what a Linear2 tile of the block needs of the pool.
        *((Field("fc2_read_count", (blocks,), U32),) if is_ring(problem, pool_rows) else ()),
        # token * topk + slot at the source: a token names an expert once, so a rank sends an expert at most all of its tokens
        Field("src_token_topk_idx", (local, ranks, problem.max_tokens_per_rank), U32),
        Field("token_src_metadata", (pool_tokens(problem, pool_rows),), U64),  # address of the combine row that its result goes to
    )


CODES = {E4M3: E4M3_CODES, E2M1: U8, UNSCALED.element: BF16}  # by element; two E2M1 share a byte
SCALES = {SCALE_F32: F32, UE8M0: U8, UE4M3: E4M3_CODES, None: U8}  # by scale; None where there are none
TMA_ALIGNMENT = 128  # bytes: bulk copies need 16; with 128 every field starts at a cache line


def scale_row(problem: Problem) -> int:
    """Scales from one token's to the next one's in x_sf: whole words of 32 bits, of which dispatch moves as many as a token has."""
    activations = problem.formats.activations
    return 0 if activations.scale is None else align(activations.scales_of(problem.hidden), 32 // BITS[activations.scale])


def rows_field(name: str, rows: int, form: Format, channels: int) -> Field:
    """So many rows of values of a format."""
    codes = CODES[form.element]
    return Field(name, (rows, form.row_bytes(channels) // codes.itemsize), codes, TMA_ALIGNMENT)


@lru_cache
def symmetric_buffer(problem: Problem, arch: Arch, pool_rows: int | None = None) -> Region:
    """One rank's buffer, with a token pool of at most `pool_rows`.  A comment says who writes a field, and who reads it.

    x_sf is K-major, rows filled up to whole words; fc1_sf and fc2_sf are M-major: a 32-bit word for a token and 128 channels, of NVFP4 64,
    of which the last may be fewer, in UTCCP order with tensor memory, else in pool order; fc2_sf has those of whole tiles.  Two E2M1 share
    a byte; BF16 has no scales.  E4M3 results: H values, H / 128 scales and what fills the last line of 128 bytes (`CombineRow`).
    """
    tokens, topk, hidden, intermediate = problem.max_tokens_per_rank, problem.topk, problem.hidden, problem.intermediate
    pool = pool_tokens(problem, pool_rows)
    sf_rows = padded_sf_rows(pool, problem.formats) if arch.has_tensor_memory else pool
    activations, between = problem.formats.activations, problem.formats.hidden
    words, between_words = activations.scale_words(hidden), between.scale_words(align(intermediate, CHANNELS_PER_WORD))
    scale, word = SCALES[activations.scale], F32 if activations.scale == SCALE_F32 else U32
    row = CombineRow(hidden, problem.formats.combine)
    results = ((topk, tokens, row.num_bytes), U8) if row.scaled else ((topk, tokens, hidden), BF16)
    return Region.stack(
        "symmetric buffer",
        workspace(problem, arch, pool_rows),
        rows_field("x", tokens, activations, hidden),  # host to dispatch of any rank
        Field("x_sf", (tokens, scale_row(problem)), scale, TMA_ALIGNMENT),  # host to dispatch of any rank
        Field("topk_idx", (tokens, topk), I64, TMA_ALIGNMENT),  # host to dispatch, combine; -1 masks a slot
        Field("topk_weights", (tokens, topk), F32, TMA_ALIGNMENT),  # host to dispatch of any rank
        rows_field("fc1_acts", pool, activations, hidden),  # dispatch to token loader
        Field("fc1_sf", (words, sf_rows), word, TMA_ALIGNMENT),  # dispatch to token loader
        Field("fc1_topk_weights", (pool,), F32, TMA_ALIGNMENT),  # dispatch to Linear1 epilogue
        rows_field("fc2_acts", pool, between, intermediate),  # Linear1 epilogue to token loader
        Field("fc2_sf", (between_words, sf_rows), word, TMA_ALIGNMENT),  # Linear1 epilogue to token loader
        Field("combine", *results, TMA_ALIGNMENT),  # Linear2 epilogue of any rank to combine
    )

"""The symmetric buffer of one rank: what peers read, what they signal, and the words that launches leave for one another."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any

from .....hardware.operand_tile import CHANNELS_PER_WORD
from .....layouts.arith import Int, ceil_div
from .....layouts.records import Watched, WatchedWaits
from .....layouts.region import BF16, F32, I32, I64, U32, U64, Field, Region
from .....problem import Problem
from .....recipe import F32 as SCALE_F32
from .....schedule.fused_moe import HostTable
from ...layouts.symmetric import SCALES, rows_field
from ...layouts.symmetric import TMA_ALIGNMENT as ALIGNMENT

SMALLEST_BLOCK = 8  # rows of the smallest tile
SMALLEST_TILE = 64  # rows and columns, where rows' results are kept
MOST_TABLES_CTAS = 32  # that make a rank's routing tables


class EpLaunch(IntEnum):
    """The kernels, which have counters of their own."""

    DISPATCH = 0
    COMBINE = 1
    TABLES = 2


class EpBarrier(Watched):
    """Where ranks meet in a launch."""

    INPUTS = 0, "dispatch"  # the tokens that peers read are there
    RESULTS = 1, "combine"  # all tiles are done
    READ = 2, "end of dispatch or combine"  # what peers read of a rank has been read
    SPLITS = 3, "routing tables"  # what every rank counts is there


class Kept(IntEnum):
    """Fields that only some choices of dispatch and combine need; each value includes those before it."""

    NOTHING = 0  # none
    PLACES = 1  # places of the tokens that tail warps of dispatch copy
    RESULTS = 2  # rows of results, until communication warps of combine send or fetch them


PER_LAUNCH = ("launch_epoch", "grid_arrivals", "rank_signal", "tile_counter", "task_counter")
"""Fields whose first index is an `EpLaunch`."""


def send_capacity(problem: Problem) -> int:
    """Pairs that a rank sends to another one at most."""
    return problem.max_tokens_per_rank * problem.max_experts_per_token


@lru_cache
def symmetric_buffer(problem: Problem, keeps: Kept = Kept.NOTHING) -> Region:
    """A rank's buffer.  A comment says who writes a field, and who reads it; a pair is a token and one of its slots, token * topk + slot.

    Two E2M1 share a byte.  UE8M0 scales: x_sf has bytes, fc1_sf the four of a row and 128 channels in a word, in UTCCP order.  BF16 tokens
    have neither.
    """
    activations = problem.formats.activations
    scale, word = SCALES[activations.scale], F32 if activations.scale == SCALE_F32 else U32
    words = problem.hidden // CHANNELS_PER_WORD
    tokens, topk, hidden, rows = problem.max_tokens_per_rank, problem.topk, problem.hidden, pool_rows(problem)
    launches, barriers, scaled = len(EpLaunch), len(EpBarrier), problem.formats.scaled
    parts = rows // SMALLEST_TILE * (hidden // SMALLEST_TILE)
    kept = (
        (Kept.PLACES, Field("sources", (rows,), I32, ALIGNMENT)),  # dispatch to tail warps: the row where a row's token lies
        (Kept.PLACES, Field("stored", (rows,), U32, ALIGNMENT)),  # dispatch to tail warps: the launch, from 1, that has stored it
        (Kept.RESULTS, Field("finished", (2, parts), U32, ALIGNMENT)),  # Linear2 to who sends: warps that have done a part, as `arrivals`
        (Kept.RESULTS, Field("kept", (rows, hidden), BF16, ALIGNMENT)),  # Linear2 to who sends results, or combine of any rank
    )
    return Region.stack(
        "symmetric buffer",
        Field("launch_epoch", (launches,), U32),  # SM 0 to all: launches of a kernel so far
        Field("grid_arrivals", (launches, barriers), U32),  # all CTAs to SM 0: CTAs at a rank barrier, over all launches
        Field("rank_signal", (launches, barriers), U32),  # SM 0 of any rank to all CTAs: ranks at a rank barrier, over all launches
        Field("tile_counter", (launches,), U32),  # of schedulers: tiles handed out, beyond the first of each CTA; 0 between launches
        Field("task_counter", (launches,), U32),  # of communication warps: tasks handed out; 0 between launches
        # dispatch to token loader: rows of a block or expert that are there, of every other launch
        Field("arrivals", (2, rows // SMALLEST_BLOCK), U32, ALIGNMENT),
        rows_field("x", tokens, activations, hidden),  # host to dispatch of any rank
        *(Field("x_sf", (tokens, activations.scales_of(hidden)), scale, ALIGNMENT),) * scaled,  # host to dispatch of any rank
        Field("topk_idx", (tokens, topk), I64, ALIGNMENT),  # host to dispatch of any rank, combine
        Field("topk_weights", (tokens, topk), F32, ALIGNMENT),  # host to dispatch of any rank, combine
        # tables of rank r to tables: its tokens for each expert, of every other launch
        Field("splits", (2, problem.num_ranks, problem.num_experts), I32, ALIGNMENT),
        Field("pulls", (2, problem.num_ranks), I32, ALIGNMENT),  # tables of rank r to tables: how many pairs it has for this rank
        Field("pair_rows", (tokens, topk), I32, ALIGNMENT),  # tables to dispatch of any rank, combine: row on its expert's rank, or -1
        Field("send_pairs", (problem.num_ranks, send_capacity(problem)), I32, ALIGNMENT),  # tables to dispatch of rank r: what it fetches
        Field("recv_pairs", (problem.num_ranks,), I32, ALIGNMENT),  # tables to scheduler: how many it fetches of each rank
        Field("expert_rows", (problem.experts_per_rank,), I32, ALIGNMENT),  # tables to scheduler: rows of each local expert
        rows_field("fc1_acts", rows, activations, hidden),  # dispatch to token loader
        *(Field("fc1_sf", (words, rows), word, ALIGNMENT),) * scaled,  # dispatch to token loader
        Field("destinations", (rows,), U64, ALIGNMENT),  # dispatch to Linear2: where a row's result goes, on its token's rank
        Field("results", (tokens * topk, hidden), BF16, ALIGNMENT),  # Linear2 of any rank to combine: of this rank's pairs
        # CTAs of tables to one another: pairs of each expert, and of each key of lists
        Field("cta_counts", (MOST_TABLES_CTAS, 2, problem.num_experts), I32, ALIGNMENT),
        *(field for least, field in kept if keeps >= least),
    )


def field_address(config: Any, base: Any, name: str, *index: Any) -> Any:
    """Address in the symmetric buffer at `base`, for this configuration's kernel: of fields that launches have for themselves, its own."""
    own = (int(config.launch),) if name in PER_LAUNCH else ()
    return config.symmetric.address(base, name, *own, *index)


ROW_BLOCK = 128
"""Rows: a whole number of tiles of every height.  What a tile reads beyond its expert's rows belongs to nobody."""


def pool_rows(problem: Problem) -> int:
    """Rows that hold any routing: every token of every rank on as many local experts as top-k allows."""
    return (problem.most_received + problem.experts_per_rank * (ROW_BLOCK - 1)) // ROW_BLOCK * ROW_BLOCK


def padded_rows(rows: Int) -> Int:
    """That an expert with so many rows takes."""
    return ceil_div(rows, ROW_BLOCK) * ROW_BLOCK


def first_rows(rows: list[int]) -> list[int]:
    """First row of each local expert, of which these are the rows, and one entry more: the rows in use."""
    return [ROW_BLOCK * block for block in HostTable.of(rows, ROW_BLOCK).first]


class EpWait(Watched):
    """Everything else waits, directly or not, for one of these."""

    ROWS = 1, "dispatch", "rows of block or expert"  # token loader: rows of a tile
    GRID = 2, ""  # SM 0, and every SM that makes tables: all CTAs at a rank barrier
    RANK = 3, ""  # every rank at a rank barrier
    STORED = 4, "dispatch", "row"  # tail warps: a row
    TILES = 5, "combine", "tiles of part"  # who sends results: tiles of a part of a block's rows


WAITS = WatchedWaits(EpWait, EpBarrier, "routing tables, dispatch or combine")

"""The symmetric buffer of one rank: what peers read, what they signal, and the words that launches leave for one another."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any

from .....hardware.operand_tile import CHANNELS_PER_WORD
from .....layouts.arith import Int, ceil_div
from .....layouts.records import WatchedWaits
from .....layouts.region import BF16, F32, I32, I64, U8, U32, U64, DType, Field, Region
from .....problem import Problem
from .....recipe import UE8M0
from ...layouts.symmetric import pool_blocks, rows_field

ALIGNMENT = 128  # TMA needs 16
SMALLEST_BLOCK = 8  # rows of the smallest tile
SMALLEST_TILE = 64  # rows and columns, where rows' results are kept
SCALE_CHANNELS = CHANNELS_PER_WORD
"""Of a word of scales: one of FP32, or four of UE8M0."""


class EpLaunch(IntEnum):
    """The kernels, which have counters of their own."""

    DISPATCH = 0
    COMBINE = 1
    TABLES = 2


class EpBarrier(IntEnum):
    """Where ranks meet in a launch.  INPUTS, of dispatch: the tokens that peers read are there.  RESULTS, of combine: all tiles are done.
    READ: what peers read of a rank has been read.  SPLITS, of the tables: what every rank counts is there."""

    INPUTS = 0
    RESULTS = 1
    READ = 2
    SPLITS = 3


class Kept(IntEnum):
    """What a buffer has for ways that are not the usual one; each of them has what the ones before it have.

    NOTHING  what every configuration needs
    PLACES   where tokens lie that tail warps of dispatch copy
    RESULTS  rows' results until communication warps of combine send or fetch them
    """

    NOTHING = 0
    PLACES = 1
    RESULTS = 2


PER_LAUNCH = ("launch_epoch", "grid_arrivals", "rank_signal", "tile_counter", "task_counter")
"""Fields whose first index is an `EpLaunch`."""


def send_capacity(problem: Problem) -> int:
    """Pairs that a rank sends to another one at most."""
    return problem.max_tokens_per_rank * problem.max_experts_per_token


def scales(problem: Problem, name: str, *shape: int, dtype: DType) -> tuple[Field, ...]:
    """A field of scales, where there are any."""
    return (Field(name, shape, dtype, ALIGNMENT),) if problem.formats.scaled else ()


def kept_fields(keeps: Kept, rows: int, hidden: int) -> tuple[Field, ...]:
    """Fields that only ways that are not the usual one read."""
    parts = rows // SMALLEST_TILE * (hidden // SMALLEST_TILE)
    places = Field("sources", (rows,), I32, ALIGNMENT), Field("stored", (rows,), U32, ALIGNMENT)
    results = Field("finished", (2, parts), U32, ALIGNMENT), Field("kept", (rows, hidden), BF16, ALIGNMENT)
    return (*(places if keeps >= Kept.PLACES else ()), *(results if keeps >= Kept.RESULTS else ()))


@lru_cache
def symmetric_buffer(problem: Problem, keeps: Kept = Kept.NOTHING) -> Region:
    """T = max_tokens_per_rank, K = topk, H = hidden, P = pool rows, R = ranks, E = experts, El = local ones.
    A pair is a token and one of its slots, token * K + slot.

    | field         | shape            | written by | read by |
    |---|---|---|---|
    | launch_epoch  | u32 [3]          | SM 0       | all: launches of a kernel so far |
    | grid_arrivals | u32 [3, 4]       | all CTAs   | SM 0: CTAs at a rank barrier, over all launches |
    | rank_signal   | u32 [3, 4]       | SM 0 of any rank | all CTAs: ranks at a rank barrier, over all launches |
    | tile_counter  | u32 [3]          | schedulers | schedulers: tiles handed out, beyond the first of each CTA; 0 between launches |
    | task_counter  | u32 [3]          | communication warps | communication warps: tasks handed out; 0 between launches |
    | arrivals      | u32 [2, P / 8]   | dispatch   | token loader: rows of a block or expert that are there, of every other launch |
    | x             | e4m3 [T, H]      | host       | dispatch of any rank |
    | x_sf          | f32 [T, H / 128] | host       | dispatch of any rank |
    | topk_idx      | i64 [T, K]       | host       | dispatch of any rank, combine |
    | topk_weights  | f32 [T, K]       | host       | combine |
    | splits        | i32 [2, R, E]    | tables of rank r | tables: its tokens for each expert, of every other launch |
    | pulls         | i32 [2, R]       | tables of rank r | tables: how many pairs it has for this rank |
    | pair_rows     | i32 [T, K]       | tables     | dispatch of any rank, combine: row of a pair on its expert's rank, or -1 |
    | send_pairs    | i32 [R, T min(K, El)] | tables | dispatch of rank r: the pairs that it fetches |
    | recv_pairs    | i32 [R]          | tables     | scheduler: how many it fetches of each rank |
    | expert_rows   | i32 [El]         | tables     | scheduler: rows of each local expert |
    | fc1_acts      | e4m3 [P, H]      | dispatch   | token loader |
    | fc1_sf        | f32 [H / 128, P] | dispatch   | token loader |
    | destinations  | u64 [P]          | dispatch   | Linear2: where a row's result goes, on its token's rank |
    | results       | bf16 [T K, H]    | Linear2 of any rank | combine: of this rank's pairs |
    | sources       | i32 [P]          | dispatch   | tail warps: the row where a row's token lies |
    | stored        | u32 [P]          | dispatch   | tail warps: the launch, from 1, that has stored the token of a row |
    | finished      | u32 [2, P H / 4096] | Linear2 | who sends results: warps that have done a part of a block, of every other launch |
    | kept          | bf16 [P, H]      | Linear2    | who sends results, or combine of any rank: those of this rank's rows |

    `sources` and `stored` exist from `Kept.PLACES` on, `finished` and `kept` with `Kept.RESULTS`, which takes memory for all rows.
    E2M1 tokens: x and fc1_acts u8 [.., H / 2], two values in a byte.  UE8M0 scales: x_sf u8 [T, H / 32]; fc1_sf u32 [H / 128, P], the four
    of a row and 128 channels in a word, in UTCCP order.  BF16 tokens: x bf16 [T, H] and fc1_acts bf16 [P, H], without x_sf and fc1_sf.
    """
    activations = problem.formats.activations
    scale, word = (U8, U32) if activations.scale == UE8M0 else (F32, F32)
    words = problem.hidden // SCALE_CHANNELS
    tokens, topk, hidden, rows = problem.max_tokens_per_rank, problem.topk, problem.hidden, pool_rows(problem)
    launches, barriers = len(EpLaunch), len(EpBarrier)
    return Region.stack(
        "symmetric buffer",
        Field("launch_epoch", (launches,), U32),
        Field("grid_arrivals", (launches, barriers), U32),
        Field("rank_signal", (launches, barriers), U32),
        Field("tile_counter", (launches,), U32),
        Field("task_counter", (launches,), U32),
        Field("arrivals", (2, rows // SMALLEST_BLOCK), U32, ALIGNMENT),
        rows_field("x", tokens, activations, hidden),
        *scales(problem, "x_sf", tokens, activations.scales_of(hidden), dtype=scale),
        Field("topk_idx", (tokens, topk), I64, ALIGNMENT),
        Field("topk_weights", (tokens, topk), F32, ALIGNMENT),
        Field("splits", (2, problem.num_ranks, problem.num_experts), I32, ALIGNMENT),
        Field("pulls", (2, problem.num_ranks), I32, ALIGNMENT),
        Field("pair_rows", (tokens, topk), I32, ALIGNMENT),
        Field("send_pairs", (problem.num_ranks, send_capacity(problem)), I32, ALIGNMENT),
        Field("recv_pairs", (problem.num_ranks,), I32, ALIGNMENT),
        Field("expert_rows", (problem.experts_per_rank,), I32, ALIGNMENT),
        rows_field("fc1_acts", rows, activations, hidden),
        *scales(problem, "fc1_sf", words, rows, dtype=word),
        Field("destinations", (rows,), U64, ALIGNMENT),
        Field("results", (tokens * topk, hidden), BF16, ALIGNMENT),
        *kept_fields(keeps, rows, hidden),
    )


def field_address(config: Any, base: Any, name: str, *index: Any) -> Any:
    """Address in the symmetric buffer that starts at `base`, for a kernel of this configuration: of the fields that launches have for
    themselves, its own."""
    own = (int(config.launch),) if name in PER_LAUNCH else ()
    return symmetric_buffer(config.problem, config.keeps).address(base, name, *own, *index)


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
    return [ROW_BLOCK * block for block in pool_blocks(rows, ROW_BLOCK)]


class EpWait(IntEnum):
    """Waits that have a watchdog; everything else waits, directly or not, for one of them."""

    ROWS = 1  # token loader: rows of a tile
    GRID = 2  # SM 0: all CTAs at a rank barrier
    RANK = 3  # every rank at a rank barrier
    STORED = 4  # tail warps: a row
    TILES = 5  # who sends results: tiles of a part of a block's rows


WAITS = WatchedWaits(
    {
        EpWait.ROWS: ("rows of block or expert", "dispatch"),
        EpWait.GRID: ("rank barrier", None),
        EpWait.RANK: ("rank barrier", None),
        EpWait.STORED: ("row", "dispatch"),
        EpWait.TILES: ("tiles of part", "combine"),
    },
    {
        EpBarrier.SPLITS: "routing tables",
        EpBarrier.INPUTS: "dispatch",
        EpBarrier.RESULTS: "combine",
        EpBarrier.READ: "end of dispatch or combine",
    },
    "routing tables, dispatch or combine",
)

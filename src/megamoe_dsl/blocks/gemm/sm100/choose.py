"""Which tile, with how many consumers, in clusters of how many pairs: what an estimate of clocks finds best.  Nobody has measured this
kernel: the rates are those of the performance model (`bench/prediction`), the instructions of an epilogue those of the compiled
kernel, and the estimate is a mean over numbers of rows of a group, which a router deals unevenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from math import sqrt
from statistics import NormalDist
from typing import Any, cast

from ....config_error import ConfigError
from ....hardware.cta_pair import CLUSTER
from ....layouts.arith import align, ceil_div
from ....target import Target
from ...sm100.pair_stage import block_ks
from ..problem import GatherGemmProblem, GemmProblem
from .config import COLUMNS, ROWS, Sm100GemmConfig


def choose(problem: GemmProblem, target: Target, rows: int, *, batch_invariant: bool = False, **fields: Any) -> Sm100GemmConfig:
    """The configuration for `rows` rows of A; `fields` replace what is chosen.  Every tile is `batch_invariant`.  Raises `ConfigError`, of
    experts' rows also for more of them than the chosen tile can have."""
    problem.check_rows(rows)
    common = {"num_sms": target.num_sms, "block_k": max(block_ks(problem.formats, problem.k)), **fields}
    if problem.sums_rows:
        block_m = min(ROWS if problem.formats.scaled else COLUMNS, key=lambda one: (align(problem.n, one), -one))
        return Sm100GemmConfig(problem, **{"block_m": block_m, "dynamic_schedule": True, **common})
    possible = []
    for tile in CANDIDATES:
        with suppress(ConfigError):
            possible.append(Sm100GemmConfig(problem, **{**tile, **common}))
    chosen = fastest(possible, rows) if possible else Sm100GemmConfig(problem, **{**CANDIDATES[0], **common})
    chosen.check_rows(rows)
    return chosen


MMA_BYTES = 32  # of K, of an instruction; a byte has one value, or two of E2M1
MMA_STEP = 16  # rows of A
CLOCKS_PER_ROW, LEAST_CLOCKS, LEAST_PER_ROW = 1 / 4, 32, 1 / 8
"""Of an MMA of 256 rows of B: by its products, and however few rows of A there are."""
EFFICIENCY = 0.8
FETCH_RATE = 64  # bytes per clock that an SM gets from L2
MEMORY_RATE = 7.25e6 / 1920  # bytes per clock that all SMs get from memory
WORD_BYTES = 4  # of scales of a row
PASS_ROWS = 8
EPILOGUE_CLOCKS, GATE_UP_CLOCKS = 15 * 1.75, {False: 52.5 * 1.75, True: 90.5 * 1.75}
"""Of 8 rows and a warp, without gate and up; with them, whose product stays BF16 or gets scales."""
TILE_CLOCKS = 288  # between two tiles
QUANTILES = tuple(NormalDist().inv_cdf((one + 0.5) / 16) for one in range(16))
"""Deviations of an expert's rows from their mean, equally likely."""

CANDIDATES: tuple[dict[str, int], ...] = tuple(
    {"block_m": block_m, "consumers": consumers, "pairs": pairs, "dynamic_schedule": pairs > 1}
    for pairs in (1, 2)
    for consumers in (1, 2)
    for block_m in (32, 64, 128, 192, 256)
)
"""Tiles of larger clusters are scheduled at run time: where fewer of these run at once than there are SMs for, the last find none left."""
WORTH = 0.95
"""Of what a tile of one consumer and one pair is estimated to take, weights from memory included: for less another is chosen."""


def rows_of_experts(problem: GemmProblem, rows: int) -> list[int]:
    """Numbers of rows that experts have when so many are dealt to all, each equally likely."""
    mean = rows / problem.num_groups
    if problem.num_groups == 1:
        return [rows]
    return [max(0, round(mean + sqrt(mean) * deviation)) for deviation in QUANTILES]


def fastest(tiles: Sequence[Sm100GemmConfig], rows: int) -> Sm100GemmConfig:
    """Returns the tile with the lowest estimate for `rows` rows of all experts together; one of a consumer and a pair stays unless another
    takes less than `WORTH` of its clocks.  `tiles` is not empty."""
    plain = min((one for one in tiles if one.consumers == one.pairs == 1), key=lambda one: clocks(one, rows), default=None)
    best = min(tiles, key=lambda one: clocks(one, rows))
    if plain is None:
        return best
    streaming = memory_clocks(plain.problem, rows)
    return best if max(clocks(best, rows), streaming) < WORTH * max(clocks(plain, rows), streaming) else plain


def memory_clocks(problem: GemmProblem, rows: int) -> float:
    """What reading the weights of experts with rows takes at least, whatever the tile."""
    counts = rows_of_experts(problem, rows)
    met = sum(count > 0 for count in counts) / len(counts) * problem.num_groups
    return met * problem.n * problem.formats.weights.row_bytes(problem.k) / MEMORY_RATE


def clocks(tile: Sm100GemmConfig, rows: int) -> float:
    """The estimate for so many rows of all experts together."""
    counts = rows_of_experts(tile.problem, rows)
    blocks = Counter(part for count in counts for part in row_blocks(count, tile.block_m))
    if not blocks:
        return 0.0
    tiles = blocks.total() / len(counts) * tile.problem.num_groups * tile.n_blocks
    rounds = ceil_div(max(1, round(tiles)), tile.num_sms // (CLUSTER * tile.pairs))
    return rounds * sum(number * tile_clocks(tile, part) for part, number in blocks.items()) / blocks.total()


def row_blocks(count: int, block_m: int) -> list[int]:
    """Rows of each of an expert's tiles."""
    whole, rest = divmod(count, block_m)
    return [block_m] * whole + [rest] * (rest > 0)


def tile_clocks(tile: Sm100GemmConfig, rows: int) -> float:
    """A tile with `rows` rows takes so many clocks: its K blocks and the part of its epilogue that the next tile's do not cover."""
    covered, stage = align(rows, MMA_STEP), tile.stage
    mma = max(covered * CLOCKS_PER_ROW, LEAST_CLOCKS + covered * LEAST_PER_ROW)
    multiply = tile.consumers * stage.k_block.row_bytes // MMA_BYTES * mma / EFFICIENCY
    gathered = covered * (stage.k_block.row_bytes / CLUSTER / tile.pairs + stage.k_block.words * WORD_BYTES)
    loop = tile.k_blocks * max(multiply, (stage.weight_transaction + gathered) / FETCH_RATE)
    passes = ceil_div(rows, PASS_ROWS) * tile.consumers / 2  # two warpgroups share them
    gate_up = tile.problem.gate_up
    epilogue = passes * (GATE_UP_CLOCKS[bool(cast(GatherGemmProblem, tile.problem).hidden.scale)] if gate_up else EPILOGUE_CLOCKS)
    return TILE_CLOCKS + (max(loop, epilogue) if tile.tmem.accumulators > 1 else loop + epilogue)

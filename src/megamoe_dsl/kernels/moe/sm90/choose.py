"""Tile, order of tiles and pool of the fused layer on SM90, where no measured point is near (tuned/)."""

from __future__ import annotations

from math import ceil

from ....layouts.arith import align, ceil_div
from ....problem import Problem
from ..config import experts_with
from ..layouts.symmetric import POOL_GRANULE, most_blocks
from .config import NUM_SMS, Sm90Config, cluster_sizes
from .memory_plan import TILE_ROWS

DEVIATIONS = 1.5  # of the tokens of an expert, that a tile holds beyond the expected ones
LOOKAHEAD_FILL = 2.5
LONG_TILES = 8192


def choose_block_m(problem: Problem, expected: float) -> int:
    """The smallest tile that holds the expected tokens of an expert and `DEVIATIONS` standard deviations more (of a Poisson count).  Packed
    weights are decoded for all rows of a tile: there one deviation more is faster (docs/lab/tuning.md)."""
    tiles, deviations = Sm90Config.tiles_of(problem), 1.0 if problem.formats.decodes else DEVIATIONS
    return next((m for m in tiles if expected_blocks(expected, m, deviations) == 1), tiles[-1])


def expected_blocks(expected: float, block_m: int, deviations: float = DEVIATIONS) -> int:
    """Tiles that hold the expected tokens of an expert and so many standard deviations more (of a Poisson count)."""
    return max(1, ceil((expected + deviations * expected**0.5) / block_m))


def has_long_tiles(problem: Problem) -> bool:
    """Whether a tile has as many blocks of K as those of Pro (56 and 24), rather than those of Flash (32 and 16)."""
    return problem.hidden + problem.intermediate >= LONG_TILES


def choose_lookahead(problem: Problem, expected: float, block_m: int, num_sms: int) -> int:
    """Experts that Linear1 is ahead of Linear2, as measured on H200s (docs/lab/hopper.md): all while an expert has one block of tokens,
    because Linear1 tiles of other experts fill the gaps of loading weights; all with long tiles, of which HBM reads more when both phases
    alternate; else as many as have `LOOKAHEAD_FILL` Linear1 tiles per SM."""
    local = problem.experts_per_rank
    if expected <= block_m or has_long_tiles(problem):
        return local
    tiles = ceil(expected / block_m) * ceil_div(2 * problem.intermediate, TILE_ROWS)
    return experts_with(LOOKAHEAD_FILL * num_sms, tiles, local)


def choose_cluster(problem: Problem, expected: float, block_m: int, num_sms: int) -> int:
    """Two CTAs read less from L2, but wait for one another at every tile: a gain where tiles are long and an expert has several blocks of
    tokens (docs/lab/tuning.md), and with tiles of any length for packed weights, of which each CTA decodes a half, and BF16.  When SMs are
    left to other streams, a CTA may find no free partner in its part of the GPU: so pairs only with all SMs."""
    of_any_length = problem.formats.decodes or not problem.formats.scaled
    gains = (has_long_tiles(problem) or of_any_length) and expected > block_m and num_sms == NUM_SMS
    return cluster_sizes(problem, block_m, num_sms)[-1] if gains else 1


def choose_fields(problem: Problem, expected: float, block_m: int | None, num_sms: int) -> dict[str, int]:
    """What the heuristics choose, with a tile of `block_m` tokens if one is given."""
    block_m = choose_block_m(problem, expected) if block_m is None else block_m
    lookahead, cluster = choose_lookahead(problem, expected, block_m, num_sms), choose_cluster(problem, expected, block_m, num_sms)
    return {"block_m": block_m, "lookahead": lookahead, "cluster": cluster}


LARGEST = 60  # blocks of 128 tokens: what a ring takes at most (docs/lab/hopper.md)


def choose_pool_rows(problem: Problem) -> int:
    """`pool_rows` of a layer for `problem.max_tokens_per_rank` tokens on every rank: an eighth more than the blocks that uniform routing
    fills, so that only skewed routing uses rows again, but at most `LARGEST` blocks of 128 tokens, and what any routing needs."""
    expected = problem.expected_tokens_per_expert(problem.max_tokens_per_rank)
    block_m = choose_block_m(problem, expected)
    filled = problem.experts_per_rank * expected_blocks(expected, block_m)
    rows = min((filled + filled // 8) * block_m, LARGEST * POOL_GRANULE, most_blocks(problem, block_m) * block_m)
    return align(rows, POOL_GRANULE)


def given_pool_rows(problem: Problem, rows: int | None) -> int | None:
    """So many pool rows; for 0, as many as `choose_pool_rows` says."""
    return choose_pool_rows(problem) if rows == 0 else rows

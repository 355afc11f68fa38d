"""Which tile a GEMM that decodes its weights takes, where nothing was measured: what a rough estimate of clocks finds best.

Rows of B come in halves and quarters of packed tiles, so that few of them still make tiles for all SMs; where these are too few, the CTAs
of a cluster have half of K each.
"""

from __future__ import annotations

from typing import Any

from ....hardware.operand_tile import BLOCK_K
from ....hardware.packed_part import PackedPart
from ..problem import CONTIGUOUS, ROW_BLOCK, GemmProblem

FETCH_RATE = 40  # bytes that an SM gets from memory and L2 per clock
MULTIPLY_RATE = 4096  # products of E4M3 that it makes
LATENCY = 500  # clocks of a K block: decoding a block of 64 rows, its wgmmas and promotion, which wait for one another
EPILOGUE = 600  # clocks
EXCHANGE = 400  # more, where halves of K are added
MOST_COLUMNS = 64

Choice = dict[str, Any]
SPLIT: Choice = {"cluster": 2, "split_k": True}
TILES: tuple[Choice, ...] = tuple(
    {"block_n": block_n, "warpgroups": warpgroups, **split}
    for block_n, warpgroups in ((64, 1), (128, 2), (256, 2))
    for split in ({}, SPLIT)
)


def choose_decoding_fields(problem: GemmProblem, expected: float, num_sms: int) -> Choice:
    """Fields of a configuration for so many rows of each group."""
    tiles = decoding_tiles(problem, expected)
    estimates = [decoding_cost(problem, expected, one, num_sms) for one in tiles]
    return {**tiles[estimates.index(min(estimates))], "dealt": problem.has_groups}


def decoding_tiles(problem: GemmProblem, expected: float) -> list[Choice]:
    """All that can be chosen for so many rows of each group."""
    block_m = columns_for(problem, expected)
    return [{"block_m": block_m, "swap_ab": True, **one} for one in TILES if problem.k_blocks > 1 or not one.get("split_k")]


def columns_for(problem: GemmProblem, expected: float) -> int:
    """Rows of A of a tile: the fewest that hold so many, or the most that there can be."""
    allowed = [m for m in range(8, MOST_COLUMNS + 1, 8) if problem.kind != CONTIGUOUS or ROW_BLOCK % m == 0]
    return next((m for m in allowed if expected <= m), allowed[-1])


def decoding_cost(problem: GemmProblem, expected: float, choice: Choice, num_sms: int) -> float:
    """The estimate for so many rows of each group."""
    block_m, block_n, split = choice["block_m"], choice["block_n"], bool(choice.get("split_k"))
    tiles = problem.num_groups * max(1, -(-round(expected) // block_m)) * -(-problem.n // block_n)
    fetch = (block_m * BLOCK_K + PackedPart(block_n).num_bytes) / FETCH_RATE
    multiply = block_m * block_n * BLOCK_K / MULTIPLY_RATE
    warps, blocks = choice["warpgroups"], block_n // 64 // choice["warpgroups"]
    issue = warps * (40 + 0.7 * block_m + blocks * (75 + 0.45 * block_m))  # instructions, as `megamoe inspect` counts them
    k_blocks = -(-problem.k_blocks // 2) if split else problem.k_blocks
    tile = k_blocks * max(fetch, multiply, issue, LATENCY) + EPILOGUE + EXCHANGE * split
    return -(-(2 if split else 1) * tiles // num_sms) * tile

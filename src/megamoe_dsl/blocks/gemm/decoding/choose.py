"""Which tile a GEMM that decodes its weights takes, where nothing was measured: what a rough estimate of clocks finds best.

Rows of B come in halves and quarters of packed tiles, so that few of them still make tiles for all SMs; where these are too few, the CTAs
of a cluster have half of K each.  More rows of A than the wgmma has columns for are its rows, where decoding costs less the more of them
a tile has.
"""

from __future__ import annotations

from typing import Any

from ....hardware.operand_tile import BLOCK_K
from ....hardware.packed_tile import BLOCK_ROWS, PackedPart
from ..problem import CONTIGUOUS, DENSE, MASKED, ROW_BLOCK, GemmProblem

FETCH_RATE = 40  # bytes that an SM gets from memory and L2 per clock
MULTIPLY_RATE = 4096  # products of E4M3 that it makes
LATENCY = 500  # clocks of a K block: decoding a block of 64 rows, its wgmmas and promotion, which wait for one another
ISSUE_RATE = 0.55  # instructions of a scheduler per clock while its warps decode for themselves
DECODE = 6.2  # clocks of a row of B by 128 of K where warps of their own decode it
EPILOGUE, STORE_RATE = 500, 64  # clocks, and elements of D per clock
EXCHANGE = 400  # more, where halves of K are added
MOST_COLUMNS = 64

Choice = dict[str, Any]
SPLIT: Choice = {"cluster": 2, "split_k": True}
TILES: tuple[Choice, ...] = tuple(
    {"swap_ab": True, "block_n": block_n, "warpgroups": warpgroups, **split}
    for block_n, warpgroups in ((64, 1), (128, 2), (256, 2))
    for split in ({}, SPLIT)
)
DECODED: tuple[Choice, ...] = ({"block_m": 128, "block_n": 256, "epilogue_buffers": 1}, {"block_m": 256, "block_n": 128})
"""Tiles whose B is decoded by warps of its own, for more rows than columns hold."""


def choose_decoding_fields(problem: GemmProblem, expected: float, num_sms: int, whole_k: bool = False) -> Choice:
    """Fields of a configuration for so many rows of each group; `whole_k`: a CTA adds up all of K."""
    tiles = [one for one in decoding_tiles(problem, expected) if not (whole_k and one.get("split_k"))]
    estimates = [decoding_cost(problem, expected, one, num_sms) for one in tiles]
    return {**tiles[estimates.index(min(estimates))], "dynamic_schedule": problem.has_groups}


def decoding_tiles(problem: GemmProblem, expected: float) -> list[Choice]:
    """All that can be chosen for so many rows of each group."""
    block_m, split = columns_for(problem, expected), expected <= MOST_COLUMNS and problem.k_blocks > 1
    swapped = [{"block_m": block_m, **one} for one in TILES if split or not one.get("split_k")]
    if expected <= MOST_COLUMNS:
        return swapped
    most = 256 if problem.kind in (DENSE, MASKED) else ROW_BLOCK
    return [
        *swapped,
        *({**one, "half_tiles": problem.has_groups and one["block_m"] == ROW_BLOCK} for one in DECODED if one["block_m"] <= most),
    ]


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
    k_blocks = -(-problem.k_blocks // 2) if split else problem.k_blocks
    per_block = max(fetch, multiply, LATENCY, issue_clocks(choice) if choice.get("swap_ab") else DECODE * block_n)
    tile = k_blocks * per_block + EPILOGUE + block_m * block_n / STORE_RATE + EXCHANGE * split
    return -(-(2 if split else 1) * tiles // num_sms) * tile


def issue_clocks(choice: Choice) -> float:
    """A scheduler takes so many clocks to issue a K block of math warps that decode, with instructions as `megamoe inspect` counts them."""
    block_m, warps = choice["block_m"], choice["warpgroups"]
    blocks = choice["block_n"] // BLOCK_ROWS // warps
    return float(warps * (40 + 0.7 * block_m + blocks * (75 + 0.45 * block_m)) / ISSUE_RATE)

"""Tile and order of tiles of the fused layer on SM100 (article 3.2.1: tiers, waves).  Nobody has measured this kernel yet."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ....blocks.sm100.pair_stage import block_ks
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....layouts.arith import ceil_div
from ....problem import Problem
from ..config import experts_with
from .config import Sm100Config

IMBALANCE_FACTOR = 2  # article 3.2.1.3


@dataclass(frozen=True)
class Tier:
    """Tile choice for up to `max_expected` tokens per expert."""

    max_expected: float
    block_m: int
    store_block_m: int  # tokens of an epilogue pass, as many as registers allow: here warpgroups take alternate tiles
    epilogue_warpgroups: int
    packed_k: int  # BLOCK_K of E2M1 activations: a row of 256 channels is 128 bytes, like one of E4M3


def holds(block_m: int) -> float:
    """Expected tokens that a tile holds with two standard deviations more (of a Poisson count): the largest e with e + 2 sqrt(e) <= m.
    The model of performance prefers the smallest such tile to the article's tiers, which change at 8.5, 16.5, 32.5 and 64.5
    (docs/lab/prediction.md)."""
    return ((1 + block_m) ** 0.5 - 1) ** 2


TIERS = (
    Tier(holds(16), 16, 16, 2, 256),
    Tier(holds(32), 32, 32, 2, 256),
    Tier(holds(64), 64, 32, 1, 256),
    Tier(holds(96), 96, 32, 2, 128),
    Tier(96.5, 128, 32, 2, 128),
    Tier(float("inf"), 192, 32, 2, 256),
)


def tiers_of(problem: Problem) -> tuple[Tier, ...]:
    """Those with a tile that its recipe has."""
    return tuple(tier for tier in TIERS if tier.block_m in Sm100Config.tiles_of(problem))


def choose_lookahead(problem: Problem, expected: float, block_m: int, num_sms: int) -> int:
    """As many experts as have, with `expected` tokens each, two Linear1 tiles per SM (article 3.2.1.3, where they form a wave).
    With less than one token per expert all experts' Linear1 comes first."""
    local = problem.experts_per_rank
    tiles = ceil(expected / block_m) * CLUSTER * ceil_div(2 * problem.intermediate, CLUSTER * BLOCK_N)
    return local if expected < 1 else experts_with(IMBALANCE_FACTOR * num_sms, tiles, local)


def choose_fields(problem: Problem, expected: float, block_m: int | None, num_sms: int) -> dict[str, int]:
    """What the heuristics choose, with the tier of a tile of `block_m` tokens if one is given."""
    tier = next(one for one in tiers_of(problem) if (expected <= one.max_expected if block_m is None else one.block_m == block_m))
    return {
        "block_m": tier.block_m,
        "lookahead": choose_lookahead(problem, expected, tier.block_m, num_sms),
        "store_block_m": tier.store_block_m,
        "epilogue_warpgroups": tier.epilogue_warpgroups,
        "block_k": min(tier.packed_k, max(block_ks(problem.formats, problem.hidden, problem.intermediate))),
    }

"""How a problem is computed on SM100: heuristics choose, `Sm100Config` checks.

Sources: article 3.2.1 (tiers, pool, waves, SMEM); pull request 44 of sgl-project's DeepGEMM (packed activations, BLOCK_K per tile).  Where
this kernel's structure differs from the article's, the docstring says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, ClassVar, Self

from ....arch import SM100, Arch
from ....blocks.sm100.pair_stage import PairConfig
from ....blocks.sm100.tmem_plan import Sm100TmemPlan
from ....config_error import require, require_integer, require_integers
from ....hardware.cta_pair import BLOCK_N, CLUSTER
from ....hardware.operand_tile import BLOCK_K, SF_ATOM_ROWS, pool_sf_row
from ....layouts.arith import Int, align, ceil_div
from ....problem import Problem
from ..config import MegaMoeConfig, RegisterBudget, experts_with
from ..layouts.smem_plan import WARPS_PER_GROUP
from ..layouts.symmetric import is_ring, smallest_block_m, whole_pool
from .smem_plan import Sm100SmemPlan

NUM_SMS = 148  # of a B200
IMBALANCE_FACTOR = 2  # article 3.2.1.3


@dataclass(frozen=True)
class Tier:
    """Tile choice for up to `max_expected` tokens per expert.

    `store_block_m` is the number of tokens that one pass of the epilogue handles.  The article's kernel splits a tile between its
    warpgroups, so that its passes are as short as 8 tokens; here the warpgroups take alternate tiles, and a pass is as long as the
    registers allow.

    `packed_k` is BLOCK_K where activations are E2M1: with 256 channels a row is 128 bytes, as long as one of E4M3, and with 128 half as
    long."""

    max_expected: float
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int
    packed_k: int


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
    """Those of its recipe: E2M1 activations begin with tiles of 32 tokens."""
    smallest = smallest_block_m(SM100, problem.formats)
    return tuple(tier for tier in TIERS if tier.block_m >= smallest)


def choose_tier(problem: Problem, expected: float) -> Tier:
    """The tier for `expected` tokens per expert."""
    return next(tier for tier in tiers_of(problem) if expected <= tier.max_expected)


def block_ks(problem: Problem) -> tuple[int, ...]:
    """BLOCK_K that a problem can have: with E2M1 activations also 256, if both linears' K come out whole in it."""
    whole = all(k % (2 * BLOCK_K) == 0 for k in (problem.hidden, problem.intermediate))
    return (BLOCK_K, 2 * BLOCK_K) if problem.formats.packs_activations and whole else (BLOCK_K,)


def store_block_ms(problem: Problem) -> tuple[int, ...]:
    """Tokens that a pass of the epilogue can have: E2M1 outputs are put together from 32."""
    return (32,) if problem.formats.packs_activations else (16, 32)


def choose_lookahead(problem: Problem, expected: float, block_m: int, num_sms: int) -> int:
    """As many experts as have, with `expected` tokens each, two Linear1 tiles per SM (article 3.2.1.3, where they form a wave).
    With less than one token per expert all experts' Linear1 comes first."""
    local = problem.experts_per_rank
    tiles = ceil(expected / block_m) * CLUSTER * ceil_div(2 * problem.intermediate, CLUSTER * BLOCK_N)
    return local if expected < 1 else experts_with(IMBALANCE_FACTOR * num_sms, tiles, local)


def choose_fields(problem: Problem, expected: float, block_m: int | None, num_sms: int) -> dict[str, int]:
    """What the heuristics choose, with the tier of a tile of `block_m` tokens if one is given."""
    tier = choose_tier(problem, expected) if block_m is None else next(one for one in tiers_of(problem) if one.block_m == block_m)
    return {
        "block_m": tier.block_m,
        "lookahead": choose_lookahead(problem, expected, tier.block_m, num_sms),
        "store_block_m": tier.store_block_m,
        "epilogue_warpgroups": tier.epilogue_warpgroups,
        "block_k": min(tier.packed_k, max(block_ks(problem))),
    }


def choose_registers(experts_per_rank: int) -> RegisterBudget:
    """More than 64 local experts need longer scheduler state in the non-epilogue roles (MEGAMOE_FACTS, Tiers)."""
    return RegisterBudget(48, 48, 208) if experts_per_rank <= 64 else RegisterBudget(96, 88, 160)


@dataclass(frozen=True)
class Sm100Config(PairConfig, MegaMoeConfig):
    """Compile-time choices of the SM100 kernel.  Build one with `Sm100Config.choose`; raises `ConfigError` where a field is out of range.

    block_m              tokens of a tile: the N of the MMA
    num_sms              CTAs of the grid, even
    store_block_m        tokens of one epilogue pass
    epilogue_warpgroups  1 or 2; two take alternate tiles
    block_k              K of a stage: 128, or 256 for E2M1 activations; both give the same bits
    """

    arch: ClassVar[Arch] = SM100
    recipes: ClassVar[tuple[str, ...]] = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8")
    plan: ClassVar[type[Sm100SmemPlan]] = Sm100SmemPlan
    group_m: ClassVar[int] = 1  # an L2 of 126 MB holds an expert's weights
    maps_per_linear: ClassVar[int] = 4

    store_block_m: int = field(kw_only=True)
    epilogue_warpgroups: int = field(kw_only=True)
    block_k: int = field(kw_only=True, default=BLOCK_K)

    def check_fields(self) -> None:
        """An even grid, a whole pool, and epilogue passes that divide a tile.  Raises `ConfigError`."""
        require(
            not is_ring(self.problem),
            "problem.pool_rows",
            self.problem.pool_rows,
            f"None, or at least {whole_pool(self.problem)}, on sm_100a",
        )
        require_integers(self, "store_block_m", "epilogue_warpgroups", "block_k")
        passes = store_block_ms(self.problem)
        store_ok = self.store_block_m in passes and self.block_m % self.store_block_m == 0
        allowed = " or ".join(map(str, passes))
        require(store_ok, "store_block_m", self.store_block_m, f"{allowed} and a divisor of block_m = {self.block_m}")
        depths = block_ks(self.problem)
        require(self.block_k in depths, "block_k", self.block_k, " or ".join(map(str, depths)) + f" for {self.problem.recipe}")
        require(self.epilogue_warpgroups in (1, 2), "epilogue_warpgroups", self.epilogue_warpgroups, "1 or 2")
        require_num_sms(self.num_sms)

    @classmethod
    def choose(cls, problem: Problem, num_tokens: int, *, num_sms: int = NUM_SMS, gpu: str | None = None, **overrides: Any) -> Self:
        """The configuration for `num_tokens` tokens on every rank.  `overrides` replace fields; a `block_m` brings its whole tier.

        `gpu` is a GPU's name as torch has it: where a point that was measured on it is near, its configuration is taken.  Nobody has
        measured this kernel yet, so that the heuristics choose until `megamoe tune` has met a GPU."""
        problem.check_num_tokens(num_tokens)
        require_num_sms(num_sms)
        return cls.choose_by(choose_fields, problem, num_tokens, num_sms, gpu, overrides)

    @classmethod
    def tiles_of(cls, problem: Problem) -> list[int]:
        """Those of the recipe's tiers."""
        return [tier.block_m for tier in tiers_of(problem)]

    @property
    def siblings(self) -> list[Self]:
        """Other passes of the epilogue, numbers of its warpgroups and K of a stage, each with the deepest ring."""
        passes = [{"store_block_m": n} for n in store_block_ms(self.problem) if self.block_m % n == 0]
        others = [*passes, *({"epilogue_warpgroups": n} for n in (1, 2)), *({"block_k": n} for n in block_ks(self.problem))]
        return [self.replace(**one, num_stages=0) for one in others]

    # --- threads and registers
    @property
    def epilogue_warps(self) -> int:
        return self.epilogue_warpgroups * WARPS_PER_GROUP

    @property
    def registers(self) -> RegisterBudget:
        """Per thread, of each role; they depend on the number of local experts."""
        return choose_registers(self.problem.experts_per_rank)

    # --- tiles
    @property
    def alternating_groups(self) -> int:
        return self.epilogue_warpgroups

    @property
    def fc2_parts(self) -> int:
        """One per 64 intermediate channels, which one CTA of a pair stores."""
        return CLUSTER * self.fc1_n_blocks

    @property
    def sf_block_m(self) -> int:
        """Scale words of one pool block: UTCCP moves atoms of 128 rows."""
        return align(self.block_m, SF_ATOM_ROWS)

    def sf_row(self, pool_block: Int, row_in_block: Int) -> Int:
        """Word index of a pool row in the M-major scale buffers, `sf_block_m` words per pool block."""
        return pool_sf_row(pool_block, row_in_block, self.sf_block_m)

    @property
    def tile_fact(self) -> str:
        return f"256 weight rows x {self.block_m} tokens x {self.block_k} channels over two CTAs"

    @property
    def epilogue_fact(self) -> str:
        return f"{self.epilogue_warps} warps, {self.store_block_m} tokens a pass"

    # --- plans
    @cached_property
    def smem(self) -> Sm100SmemPlan:
        return self.plan(self, self.num_stages)

    @property
    def tmem(self) -> Sm100TmemPlan:
        """Columns of a CTA's tensor memory."""
        return Sm100TmemPlan(self.block_m)

    def of_stage(self, linear: bool) -> Self:
        return self.replace(lookahead=self.problem.experts_per_rank, num_stages=0, trace=False)


def require_num_sms(num_sms: int) -> None:
    """Raises `ConfigError` unless the grid consists of whole CTA pairs."""
    require_integer("num_sms", num_sms)
    require(num_sms >= CLUSTER and num_sms % CLUSTER == 0, "num_sms", num_sms, f"a positive multiple of {CLUSTER}")

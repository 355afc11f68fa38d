"""How a problem is computed: tile shape, order of tiles, stages, thread and register budgets.  Heuristics choose, `Sm100Config` checks.

Sources: article 3.2.1 (tiers, pool, waves, SMEM); where this kernel's structure differs from the article's, the docstring says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from ....config_error import require, require_integer, require_integers
from ....hardware.scale_factors import pool_sf_row
from ....layouts.arith import Int, align
from ....problem import Problem
from ..config import REGISTER_FILE, RegisterBudget, experts_with, no_room_for_a_ring
from ..layouts.pool import CANDIDATE_BLOCK_M
from ..layouts.tile import BLOCK_K, DISPATCH_WARPS, LOADER_WARPS, WARPS_PER_GROUP
from .tile import BLOCK_N, CLUSTER

if TYPE_CHECKING:
    from .smem_plan import Sm100SmemPlan
    from .tmem_plan import TmemPlan

SMEM_CAPACITY = 232448  # bytes a CTA can use on sm_100 (227 KiB)
IMBALANCE_FACTOR = 2  # article 3.2.1.3


@dataclass(frozen=True)
class Tier:
    """Tile choice for up to `max_expected` tokens per expert (article 3.2.1.1).

    `store_block_m` is the number of tokens one pass of the epilogue handles.  The article's kernel splits a tile between its warpgroups
    and needs down to 8; here the warpgroups take alternate tiles, so a pass is as long as the registers allow.
    """

    max_expected: float
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int


TIERS = (
    Tier(8.5, 16, 16, 2),
    Tier(16.5, 32, 32, 2),
    Tier(32.5, 64, 32, 1),
    Tier(64.5, 96, 32, 2),
    Tier(96.5, 128, 32, 2),
    Tier(float("inf"), 192, 32, 2),
)


def choose_tier(problem: Problem, num_tokens: int) -> Tier:
    """The tier for `num_tokens` tokens on every rank."""
    expected = problem.expected_tokens_per_expert(num_tokens)
    return next(tier for tier in TIERS if expected <= tier.max_expected)


def choose_lookahead(problem: Problem, expected: float, block_m: int, num_sms: int) -> int:
    """Experts whose Linear1 tiles, with `expected` tokens each, keep all SMs busy twice over (article 3.2.1.3, where they form a wave).
    With less than one token per expert all experts' Linear1 comes first."""
    local = problem.experts_per_rank
    tiles = ceil(expected / block_m) * (2 * problem.intermediate // BLOCK_N)
    return local if expected < 1 else experts_with(IMBALANCE_FACTOR * num_sms, tiles, local)


def choose_registers(experts_per_rank: int) -> RegisterBudget:
    """More than 64 local experts need longer scheduler state in the non-epilogue roles (MEGAMOE_FACTS, Tiers)."""
    return RegisterBudget(48, 40, 208) if experts_per_rank <= 64 else RegisterBudget(96, 88, 160)


@dataclass(frozen=True)
class Sm100Config:
    """Compile-time choices of the SM100 kernel.  Build one with `Sm100Config.choose`; raises `ConfigError` where a field is out of range.

    block_m              tokens of a tile: the N of the MMA
    store_block_m        tokens of one epilogue pass
    epilogue_warpgroups  1 or 2; two take alternate tiles
    lookahead                 experts that Linear1 is ahead of Linear2; with all of them no tile of Linear2 comes before one of Linear1
    num_sms              CTAs of the grid, even
    num_stages           depth of the TMA ring; 0 asks for the deepest that fits
    """

    problem: Problem
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int
    lookahead: int
    num_sms: int
    num_stages: int = 0

    def __post_init__(self) -> None:
        require(self.problem.recipe == "fp8xfp4", "problem.recipe", self.problem.recipe, "fp8xfp4")
        require_integers(self, "block_m", "store_block_m", "epilogue_warpgroups", "lookahead", "num_sms", "num_stages")
        require(
            self.block_m in CANDIDATE_BLOCK_M and self.block_m >= 16, "block_m", self.block_m, "one of " + str([t.block_m for t in TIERS])
        )
        store_ok = self.store_block_m in (16, 32) and self.block_m % self.store_block_m == 0
        require(store_ok, "store_block_m", self.store_block_m, f"16 or 32 and a divisor of block_m = {self.block_m}")
        require(self.epilogue_warpgroups in (1, 2), "epilogue_warpgroups", self.epilogue_warpgroups, "1 or 2")
        local = self.problem.experts_per_rank
        require(1 <= self.lookahead <= local, "lookahead", self.lookahead, f"between 1 and experts_per_rank = {local}")
        require_num_sms(self.num_sms)
        most = self.smem_plan(1).max_stages(SMEM_CAPACITY)
        if most < 2:
            raise no_room_for_a_ring(self.problem, self.smem_plan(1))
        if self.num_stages == 0:
            object.__setattr__(self, "num_stages", most)
        require(2 <= self.num_stages <= most, "num_stages", self.num_stages, f"between 2 and {most}, or 0 for the deepest")
        budget, total = self.registers, self.register_total
        require(total <= REGISTER_FILE, "registers", budget, f"at most {REGISTER_FILE} in all, got {total}")

    @classmethod
    def choose(cls, problem: Problem, num_tokens: int, *, num_sms: int = 148, **overrides: Any) -> Sm100Config:
        """The configuration for `num_tokens` tokens on every rank.  `overrides` replace fields; a `block_m` brings its whole tier."""
        problem.check_num_tokens(num_tokens)
        require_num_sms(num_sms)
        tier = choose_tier(problem, num_tokens)
        if "block_m" in overrides:
            block_m = overrides["block_m"]
            known = [t.block_m for t in TIERS]
            require(block_m in known, "block_m", block_m, f"one of {known}")
            tier = TIERS[known.index(block_m)]
        lookahead = choose_lookahead(problem, problem.expected_tokens_per_expert(num_tokens), tier.block_m, num_sms)
        fields = {
            "block_m": tier.block_m,
            "store_block_m": tier.store_block_m,
            "epilogue_warpgroups": tier.epilogue_warpgroups,
            "lookahead": lookahead,
            "num_sms": num_sms,
        }
        return cls(problem, **{**fields, **overrides})

    def replace(self, **changes: Any) -> Sm100Config:
        return replace(self, **changes)

    # --- threads and registers
    @property
    def epilogue_warps(self) -> int:
        return self.epilogue_warpgroups * WARPS_PER_GROUP

    @property
    def num_threads(self) -> int:
        return 32 * (DISPATCH_WARPS + LOADER_WARPS + self.epilogue_warps)

    @property
    def registers(self) -> RegisterBudget:
        return choose_registers(self.problem.experts_per_rank)

    @property
    def register_total(self) -> int:
        budget = self.registers
        return 32 * (DISPATCH_WARPS * budget.dispatch + LOADER_WARPS * budget.loader + self.epilogue_warps * budget.epilogue)

    # --- tiles
    @property
    def trace(self) -> bool:
        """Stamps are for profiles on silicon, which this kernel has not met."""
        return False

    @property
    def arch(self) -> str:
        return "sm_100a"

    @property
    def adds_bf16(self) -> bool:
        """Whether the hardware adds a BF16 to an FP32 in one instruction."""
        return self.arch == "sm_100a"

    @property
    def cluster(self) -> int:
        return CLUSTER

    def sf_row(self, pool_block: Int, row_in_block: Int) -> Int:
        """Word index of a pool row in the M-major scale buffers."""
        return pool_sf_row(pool_block, row_in_block, self.sf_block_m)

    @property
    def group_m(self) -> int:
        """Token blocks that the schedule takes together: an L2 of 126 MB holds an expert's weights."""
        return 1

    @property
    def blocks_per_fetch(self) -> int:
        """Blocks of the schedule that a cluster takes at a time."""
        return 1

    @property
    def num_clusters(self) -> int:
        return self.num_sms // CLUSTER

    @property
    def sf_block_m(self) -> int:
        """Scale words of one pool block: UTCCP moves atoms of 128 rows."""
        return align(self.block_m, 128)

    @property
    def fc1_n_blocks(self) -> int:
        """256-row tiles of W1 (2 * intermediate rows), one per CTA pair."""
        return 2 * self.problem.intermediate // (CLUSTER * BLOCK_N)

    @property
    def fc2_n_blocks(self) -> int:
        return self.problem.hidden // (CLUSTER * BLOCK_N)

    @property
    def fc2_arrival_bits(self) -> int:
        """Of a finished pool block: one per 64 intermediate channels, which one CTA of a pair stores."""
        return self.problem.intermediate // 64

    @property
    def fc1_k_blocks(self) -> int:
        return self.problem.hidden // BLOCK_K

    @property
    def fc2_k_blocks(self) -> int:
        return self.problem.intermediate // BLOCK_K

    # --- plans
    @property
    def smem(self) -> Sm100SmemPlan:
        return self.smem_plan(self.num_stages)

    def smem_plan(self, num_stages: int) -> Sm100SmemPlan:
        from .smem_plan import Sm100SmemPlan

        return Sm100SmemPlan(
            num_experts=self.problem.num_experts,
            experts_per_rank=self.problem.experts_per_rank,
            hidden=self.problem.hidden,
            topk=self.problem.topk,
            block_m=self.block_m,
            store_block_m=self.store_block_m,
            epilogue_warpgroups=self.epilogue_warpgroups,
            num_stages=num_stages,
        )

    @property
    def tmem(self) -> TmemPlan:
        from .tmem_plan import TmemPlan

        return TmemPlan(self.block_m)


def require_num_sms(num_sms: int) -> None:
    require_integer("num_sms", num_sms)
    require(num_sms >= CLUSTER and num_sms % CLUSTER == 0, "num_sms", num_sms, f"a positive multiple of {CLUSTER}")

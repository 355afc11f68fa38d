"""How experts are chosen, tokens routed, and their results summed: grids of one CTA per SM."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from ...arch import ARCH_BY_NAME, SM90, SM100
from ...blocks.gemm.problem import GEMM_RECIPES, I64, INDICES, SCALE_BLOCK
from ...config_error import CheckedConfig
from ...layouts.region import F32, U32, Field, Region, SharedPlan
from ...recipe import RECIPES
from .problem import QuantizeProblem, QuantizeWeightsProblem, RoutingProblem, SumProblem, TokensProblem, TopExpertsProblem

WARPS = 32
MOST_SORTERS = 32  # CTAs that sort; the table of their counts has so many lines
SLOTS_PER_SORTER = 4096  # counted and placed in about the time that meeting takes

ROUTED: dict[str, tuple[str, ...]] = {
    SM90.name: tuple(name for name in GEMM_RECIPES if not RECIPES[name].scales_in_mma),
    SM100.name: tuple(name for name in GEMM_RECIPES if not RECIPES[name].promoted),
}
"""Recipes that tokens can be quantized to on each architecture."""


THREADS: dict[type, int] = {
    RoutingProblem: 32 * WARPS,
    SumProblem: 512,
    TopExpertsProblem: 256,
    QuantizeProblem: 256,
    QuantizeWeightsProblem: 256,
}
"""Threads of a CTA, by the class of the problem."""
PARTS = 2 * THREADS[QuantizeProblem] // SCALE_BLOCK
"""Parts of the 128 rows that share a scale of a channel; each is one thread's."""
BLOCK_VALUES = Field("values", (SCALE_BLOCK, SCALE_BLOCK // 2), U32, 16)
MAXIMA: dict[type, Field] = {
    QuantizeProblem: Field("maxima", (PARTS, SCALE_BLOCK), F32, 16),
    QuantizeWeightsProblem: Field("maxima", (THREADS[QuantizeWeightsProblem] // 32,), F32, 16),
}
PLANS = {kind: SharedPlan(Region.stack("smem", BLOCK_VALUES, maxima)) for kind, maxima in MAXIMA.items()}
"""Shared memory by the class of the problem: BF16 pairs of a block, and the maximum of each part of a channel, or of each warp."""


@dataclass(frozen=True)
class TokensConfig(CheckedConfig):
    """How experts are chosen, and their results summed; raises `ConfigError` where a field is out of range."""

    arch = ARCH_BY_NAME
    cluster: ClassVar[int] = 1
    least_sms: ClassVar[int] = 1

    problem: TokensProblem
    num_sms: int  # CTAs of the grid
    arch_name: str = field(default=SM90.name, kw_only=True)  # `sm_90a` or `sm_100a`

    def __post_init__(self) -> None:
        self.require("problem", type(self.problem) in THREADS, " or ".join(f"a {one.__name__}" for one in THREADS))
        self.require_any("arch_name", ROUTED)
        if self.problem.recipe:
            self.require_any("problem.recipe", ROUTED[self.arch_name], f" for {self.arch}")
        self.check_declared()
        self.require("num_sms", self.num_sms >= self.least_sms, f"at least {self.least_sms}")

    num_threads = property(lambda self: THREADS[type(self.problem)])
    smem = property(lambda self: PLANS.get(type(self.problem)))


@dataclass(frozen=True)
class RouteConfig(TokensConfig):
    """The first CTAs sort top-k slots by expert; the others quantize tokens, if the recipe has scales."""

    problem: RoutingProblem
    sorters: int = 1  # most CTAs that sort: fewer than num_sms, and at most 32
    slots_per_sorter: int = SLOTS_PER_SORTER  # top-k slots for each sorting CTA; more slots take more CTAs, up to `sorters`
    indices: str = I64  # type of top-k indices: i64 or i32

    least_sms = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("problem", isinstance(self.problem, RoutingProblem), "a RoutingProblem")
        self.require_between("sorters", 1, min(MOST_SORTERS, self.num_sms - 1))
        self.require_any("indices", INDICES)
        self.require("slots_per_sorter", self.slots_per_sorter >= 1, "at least 1")

    @cached_property
    def smem(self) -> SharedPlan:  # type: ignore[override]
        """counts: slots of each (warp, expert), later the row of its next slot; totals: slots of 32 experts each."""
        counts = Field("counts", (WARPS, self.problem.num_experts), U32, 16)
        return SharedPlan(Region.stack("smem", counts, Field("totals", (WARPS,), U32, 16)))

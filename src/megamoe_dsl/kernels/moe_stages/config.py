"""How a stage is computed: the configuration of the fused kernel, of which it takes tile, pool layout and grid, with the stage's own warps
and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ...config_error import require
from ...layouts.arith import ceil_div
from ...problem import Problem
from ...schedule import FC1, FC2
from ...tuned import DEFAULT_GPU
from ..mega_moe.config import RegisterBudget
from ..mega_moe.layouts.combine_plan import LANE_VECTOR
from ..mega_moe.layouts.tile import DISPATCH_WARPS, LOADER_WARPS, WARPS_PER_GROUP
from ..mega_moe.sm90.config import NUM_SMS, Sm90Config, most_columns
from ..mega_moe.sm90.smem_plan import MATH_WARPGROUPS
from .smem_plan import CombineStagePlan, DispatchStagePlan, LinearStagePlan, StagePlan, SwigluStagePlan

SWIGLU_WARPS = 16
BLOCKS_PER_PART = 4
"""Blocks of 128 intermediate channels that a warp of SwiGLU takes at a time, eight lanes each."""
MATH_WARPS = WARPS_PER_GROUP * MATH_WARPGROUPS
LINEAR_REGISTERS = RegisterBudget(dispatch=0, loader=40, epilogue=232)
MOST_PULL_SLOTS = 8
MOST_PUSHED = 2048  # channels: eight vectors of 16 bytes in each lane


@dataclass(frozen=True)
class StageConfig(Sm90Config):
    """What all stages have in common; of a launch of the layer they agree in problem, block_m and num_sms."""

    plan: ClassVar[type[StagePlan]]
    num_warps: ClassVar[int]

    def check_fields(self) -> None:
        """As of the fused kernel, with a whole pool; no stamps are left, and no warps decode for others.  Raises `ConfigError`."""
        super().check_fields()
        require(not self.ring_blocks, "problem.pool_rows", self.problem.pool_rows, "None, or enough for any routing, in stages")
        decoding = f"at most {most_columns(self.packed)}: stages decode packed weights in their math warps"
        require(not self.decoded, "block_m", self.block_m, decoding)
        require(not self.trace, "trace", self.trace, "False: stages leave no stamps")

    @classmethod
    def of(cls, fused: Sm90Config) -> Self:
        """The stage of a layer that this configuration is for."""
        p = fused.problem
        block_m = most_columns(packed=True) if fused.decoded else fused.block_m
        return cls(p, block_m, p.experts_per_rank, fused.num_sms, cluster=cls.cluster_of(fused))

    @classmethod
    def cluster_of(cls, fused: Sm90Config) -> int:
        """CTAs of a cluster: where tiles are none, there is nothing to fetch together."""
        return 1

    @classmethod
    def choose(cls, problem: Problem, num_tokens: int, *, num_sms: int = NUM_SMS, gpu: str | None = DEFAULT_GPU, **overrides: Any) -> Self:
        """That of the fused kernel's choice; `num_stages` is the stage's own."""
        stages = {"num_stages": overrides.pop("num_stages")} if "num_stages" in overrides else {}
        return cls.of(Sm90Config.choose(problem, num_tokens, num_sms=num_sms, gpu=gpu, **overrides)).replace(**stages)

    @property
    def num_threads(self) -> int:
        """Of a CTA."""
        return 32 * self.num_warps

    @property
    def smem(self) -> StagePlan:
        """Of `num_stages` stages."""
        return self.smem_plan(self.num_stages)

    def smem_plan(self, num_stages: int) -> StagePlan:
        """Of another number of stages; a row's chunks all have a slot, up to eight."""
        results = self.problem.formats.combine
        plan = self.plan(*self.plan_shape, num_stages, cluster=self.cluster, packed=self.packed, results=results)
        return replace(plan, pull_slots=min(plan.hidden // plan.pull_chunk, MOST_PULL_SLOTS))


@dataclass(frozen=True)
class MoeDispatchConfig(StageConfig):
    """Counts exchanged, tokens pulled into the pool."""

    plan = DispatchStagePlan
    num_warps = DISPATCH_WARPS + 1


@dataclass(frozen=True)
class LinearConfig(StageConfig):
    """A grouped GEMM over the pool."""

    phase: ClassVar[int]
    plan = LinearStagePlan
    num_warps = LOADER_WARPS + MATH_WARPS

    @classmethod
    def cluster_of(cls, fused: Sm90Config) -> int:
        """As in the fused kernel."""
        return fused.cluster

    @property
    def registers(self) -> RegisterBudget:
        """Of loaders and math warps, which have what the fused kernel gives dispatch."""
        return LINEAR_REGISTERS

    # --- what the order of tiles asks for (schedule/grouped.py)
    @property
    def num_experts(self) -> int:
        """Of this rank."""
        return self.problem.experts_per_rank

    @property
    def n_blocks(self) -> int:
        """256-row tiles of the stage's weights."""
        return self.fc1_n_blocks if self.phase == FC1 else self.fc2_n_blocks


@dataclass(frozen=True)
class MoeFc1Config(LinearConfig):
    """Linear1: gate and up, rounded to BF16."""

    phase = FC1


@dataclass(frozen=True)
class MoeFc2Config(LinearConfig):
    """Linear2: the result of every received token, rounded to BF16."""

    phase = FC2


@dataclass(frozen=True)
class MoeSwigluConfig(StageConfig):
    """SwiGLU times the top-k weight, quantised."""

    plan = SwigluStagePlan
    num_warps = SWIGLU_WARPS

    @property
    def token_parts(self) -> int:
        """Parts of a token: a warp takes one at a time."""
        return ceil_div(self.fc1_n_blocks, BLOCKS_PER_PART)


@dataclass(frozen=True)
class MoeCombineConfig(StageConfig):
    """Results sent to the tokens' ranks and summed there, and the workspace cleared."""

    plan = CombineStagePlan
    num_warps = DISPATCH_WARPS + MATH_WARPS

    @property
    def push_channels(self) -> int:
        """Channels of a row that a warp sends at a time."""
        hidden = self.problem.hidden
        return next(n for n in range(MOST_PUSHED, 0, -LANE_VECTOR) if hidden % n == 0)

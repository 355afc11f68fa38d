"""How a stage is computed: the configuration of the fused kernel, of which it takes tile, pool layout and grid, with the stage's own warps
and shared memory.  The configuration of a stage on an architecture is one of these before the architecture's (sm90.py, sm100/config.py)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ....layouts.arith import ceil_div
from ....problem import Problem
from ....schedule import FC1, FC2
from ..config import MegaMoeConfig, RegisterBudget
from ..layouts.combine_plan import LANE_VECTOR
from ..layouts.tile import DISPATCH_WARPS, LOADER_WARPS
from .smem_plan import StagePlan

SWIGLU_WARPS = 16
BLOCKS_PER_PART = 4
"""Blocks of 128 intermediate channels that a warp of SwiGLU takes at a time, eight lanes each."""
MOST_PUSHED = 2048  # channels: eight vectors of 16 bytes in each lane


@dataclass(frozen=True)
class StageConfig(MegaMoeConfig):
    """What all stages have in common; of a launch of the layer they agree in problem, block_m and num_sms."""

    fused: ClassVar[type[MegaMoeConfig]]
    plan: ClassVar[type[StagePlan]]
    linear: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def of(cls, fused: Any) -> Self:
        """The stage of a layer that this configuration is for."""

    @classmethod
    def choose(cls, problem: Problem, num_tokens: int, **overrides: Any) -> Self:
        """That of the fused kernel's choice; `num_stages` is the stage's own."""
        stages = {"num_stages": overrides.pop("num_stages")} if "num_stages" in overrides else {}
        return cls.of(cls.fused.choose(problem, num_tokens, **overrides)).replace(**stages)

    @property
    @abstractmethod
    def num_warps(self) -> int:
        """Of a CTA."""

    @property
    @abstractmethod
    def linear_registers(self) -> RegisterBudget:
        """Of loaders and epilogue of a linear stage, which have what the fused kernel gives dispatch."""

    @property
    def num_threads(self) -> int:
        return 32 * self.num_warps

    @property
    def smem(self) -> Any:
        return self.smem_plan(self.num_stages)

    @abstractmethod
    def smem_plan(self, num_stages: int) -> Any:
        """A `plan` of another number of stages."""


@dataclass(frozen=True)
class DispatchConfig(StageConfig):
    """Counts exchanged, tokens pulled into the pool."""

    @property
    def num_warps(self) -> int:
        """Those of dispatch, and one for the table of experts."""
        return DISPATCH_WARPS + 1


@dataclass(frozen=True)
class LinearConfig(StageConfig):
    """A grouped GEMM over the pool."""

    phase: ClassVar[int]
    linear = True

    @property
    def num_warps(self) -> int:
        return LOADER_WARPS + self.epilogue_warps

    @property
    def registers(self) -> RegisterBudget:
        return self.linear_registers

    # --- what the order of tiles asks for (schedule/grouped.py)
    @property
    def num_experts(self) -> int:
        return self.problem.experts_per_rank

    @property
    def n_blocks(self) -> int:
        """256-row tiles of the stage's weights."""
        return self.fc1_n_blocks if self.phase == FC1 else self.fc2_n_blocks


@dataclass(frozen=True)
class Fc1Config(LinearConfig):
    """Linear1: gate and up, rounded to BF16."""

    phase = FC1


@dataclass(frozen=True)
class Fc2Config(LinearConfig):
    """Linear2: the result of every received token, rounded to BF16."""

    phase = FC2


@dataclass(frozen=True)
class SwigluConfig(StageConfig):
    """SwiGLU times the top-k weight, quantised."""

    @property
    def num_warps(self) -> int:
        return SWIGLU_WARPS

    @property
    def token_parts(self) -> int:
        """Parts of a token: a warp takes one at a time."""
        return ceil_div(self.fc1_n_blocks, BLOCKS_PER_PART)


@dataclass(frozen=True)
class CombineConfig(StageConfig):
    """Results sent to the tokens' ranks and summed there, and the workspace cleared."""

    @property
    def num_warps(self) -> int:
        """Those that clear, and those that send and sum."""
        return DISPATCH_WARPS + self.epilogue_warps

    @property
    def push_channels(self) -> int:
        """Channels of a row that a warp sends at a time."""
        hidden = self.problem.hidden
        return next(n for n in range(MOST_PUSHED, 0, -LANE_VECTOR) if hidden % n == 0)

"""The stages' configurations on SM100."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .....config_error import require
from .....hardware.cta_pair import CLUSTER
from ...config import RegisterBudget, require_whole_tiles
from ...sm100.config import Sm100Config, choose_registers
from ..config import CombineConfig, DispatchConfig, Fc1Config, Fc2Config, StageConfig, SwigluConfig
from .smem_plan import Sm100CombinePlan, Sm100DispatchPlan, Sm100LinearPlan, Sm100SwigluPlan


@dataclass(frozen=True)
class Sm100Stage(StageConfig, Sm100Config):
    """What all have in common."""

    fused: ClassVar[type[Sm100Config]] = Sm100Config

    def check_fields(self) -> None:
        """As of the fused kernel; no stamps are left.  Raises `ConfigError`."""
        super().check_fields()
        require_whole_tiles(self.problem, "in stages")
        require(not self.trace, "trace", self.trace, "False: stages leave no stamps")

    @classmethod
    def of(cls, fused: Sm100Config) -> Self:
        """The stage of a layer that this configuration is for."""
        p = fused.problem
        passes: dict[str, Any] = {
            "store_block_m": fused.store_block_m,
            "epilogue_warpgroups": fused.epilogue_warpgroups,
            "block_k": fused.block_k,
        }
        return cls(p, fused.block_m, p.experts_per_rank, fused.num_sms, **passes)

    @property
    def cluster(self) -> int:
        """The CTA pair of an MMA; where none multiply, CTAs are on their own."""
        return CLUSTER if self.linear else 1

    @property
    def linear_registers(self) -> RegisterBudget:
        """Those of the fused kernel, without dispatch."""
        return replace(choose_registers(self.problem.experts_per_rank), dispatch=0)

    def smem_plan(self, num_stages: int) -> Any:
        return self.plan(*self.plan_shape, num_stages, **self.plan_fields)


@dataclass(frozen=True)
class Sm100MoeDispatchConfig(DispatchConfig, Sm100Stage):
    """Dispatch."""

    plan = Sm100DispatchPlan


@dataclass(frozen=True)
class Sm100MoeFc1Config(Fc1Config, Sm100Stage):
    """Linear1."""

    plan = Sm100LinearPlan


@dataclass(frozen=True)
class Sm100MoeFc2Config(Fc2Config, Sm100Stage):
    """Linear2."""

    plan = Sm100LinearPlan


@dataclass(frozen=True)
class Sm100MoeSwigluConfig(SwigluConfig, Sm100Stage):
    """SwiGLU."""

    plan = Sm100SwigluPlan


@dataclass(frozen=True)
class Sm100MoeCombineConfig(CombineConfig, Sm100Stage):
    """Combine."""

    plan = Sm100CombinePlan

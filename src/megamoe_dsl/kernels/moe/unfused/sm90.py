"""The stages' configurations on SM90."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ....config_error import require
from ..config import RegisterBudget, require_whole_tiles
from ..sm90.config import Sm90Config, most_columns
from .config import CombineConfig, DispatchConfig, Fc1Config, Fc2Config, StageConfig, SwigluConfig
from .smem_plan import Sm90CombinePlan, Sm90DispatchPlan, Sm90LinearPlan, Sm90SwigluPlan

LINEAR_REGISTERS = RegisterBudget(dispatch=0, loader=40, epilogue=232)
MOST_PULL_SLOTS = 8


@dataclass(frozen=True)
class Sm90Stage(StageConfig, Sm90Config):
    """What all have in common."""

    fused: ClassVar[type[Sm90Config]] = Sm90Config

    def check_fields(self) -> None:
        """As of the fused kernel, with a whole pool; no stamps are left, and no warps decode for others.  Raises `ConfigError`."""
        super().check_fields()
        require_whole_tiles(self.problem, "in stages")
        require(not self.ring_blocks, "problem.pool_rows", self.problem.pool_rows, "None, or enough for any routing, in stages")
        decoding = f"at most {most_columns(self.packed)}: stages decode packed weights in their math warps"
        require(not self.decoded, "block_m", self.block_m, decoding)
        require(not self.trace, "trace", self.trace, "False: stages leave no stamps")

    @classmethod
    def of(cls, fused: Sm90Config) -> Self:
        """The stage of a layer that this configuration is for; where tiles are none, there is nothing that a cluster fetches together."""
        p = fused.problem
        if fused.decoded:
            return cls(p, most_columns(packed=True), p.experts_per_rank, fused.num_sms)
        return cls(p, fused.block_m, p.experts_per_rank, fused.num_sms, cluster=fused.cluster if cls.linear else 1)

    @property
    def linear_registers(self) -> RegisterBudget:
        """Math warps have what the fused kernel gives dispatch."""
        return LINEAR_REGISTERS

    def smem_plan(self, num_stages: int) -> Any:
        """Of another number of stages; a row's chunks all have a slot, up to eight."""
        kind: Any = self.plan
        results = self.problem.formats.combine
        plan = kind(*self.plan_shape, num_stages, cluster=self.cluster, packed=self.packed, results=results)
        return replace(plan, pull_slots=min(plan.hidden // plan.pull_chunk, MOST_PULL_SLOTS))


@dataclass(frozen=True)
class MoeDispatchConfig(DispatchConfig, Sm90Stage):
    """Dispatch."""

    plan = Sm90DispatchPlan


@dataclass(frozen=True)
class MoeFc1Config(Fc1Config, Sm90Stage):
    """Linear1."""

    plan = Sm90LinearPlan


@dataclass(frozen=True)
class MoeFc2Config(Fc2Config, Sm90Stage):
    """Linear2."""

    plan = Sm90LinearPlan


@dataclass(frozen=True)
class MoeSwigluConfig(SwigluConfig, Sm90Stage):
    """SwiGLU."""

    plan = Sm90SwigluPlan


@dataclass(frozen=True)
class MoeCombineConfig(CombineConfig, Sm90Stage):
    """Combine."""

    plan = Sm90CombinePlan

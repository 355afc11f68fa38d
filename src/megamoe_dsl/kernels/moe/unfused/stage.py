"""The stages of the unfused layer: which warps, shared memory and mbarriers of the fused kernel each launch keeps, and what stages leave
for one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from ....layouts.region import BF16, Field, MBarrier, Region
from ....problem import Problem
from ....schedule.fused_moe import FC1, FC2
from ..config import MegaMoeConfig
from ..layouts.pool import pool_tokens
from ..layouts.smem_plan import SmemPlan, deepest_ring, fields_of
from ..layouts.symmetric import TMA_ALIGNMENT
from ..layouts.tile import DISPATCH_WARPS, LOADER_WARPS

SWIGLU_WARPS = 16


@dataclass(frozen=True)
class LayerStage:
    """One launch of the layer.

    name      the kernel is `moe_` and this name
    warps     warps of a CTA, given the fused kernel's configuration
    fields    what the stage's roles share of the fused kernel's SMEM plan, besides the table of experts
    barriers  names of the mbarriers that they use
    phase     the linear that the stage computes; None for the others
    """

    name: str
    warps: Callable[[MegaMoeConfig], int]
    fields: Callable[[SmemPlan], tuple[Field, ...]]
    barriers: tuple[str, ...]
    phase: int | None = None

    @property
    def linear(self) -> bool:
        """Whether the stage is a grouped GEMM over the pool."""
        return self.phase is not None


def linear_stage(name: str, phase: int) -> LayerStage:
    """A grouped GEMM: loaders and epilogue, the ring and what is staged on its way out, the work tiles."""
    barriers = ("full", "empty", "acc_full", "acc_empty", "counts", "work_tile_full", "work_tile_empty")
    return LayerStage(name, lambda fused: LOADER_WARPS + fused.epilogue_warps, linear_fields, barriers, phase)


def linear_fields(plan: SmemPlan) -> tuple[Field, ...]:
    """The ring and staging, the table of packed weights, the work tiles, and where tensor memory begins."""
    return (*plan.tile_fields, *plan.before_barriers, plan.work_tile_words, *plan.after_barriers)


LAYER_STAGES = (
    LayerStage("dispatch", lambda fused: DISPATCH_WARPS + 1, lambda plan: plan.dispatch_fields, ("counts", "pull")),
    linear_stage("fc1", FC1),
    LayerStage("swiglu", lambda fused: SWIGLU_WARPS, lambda plan: (), ("counts",)),
    linear_stage("fc2", FC2),
    LayerStage("combine", lambda fused: DISPATCH_WARPS + fused.epilogue_warps, lambda plan: (plan.combine_slots,), ("counts", "combine")),
)
"""In the order of their launches."""
STAGE_NAMES = tuple(stage.name for stage in LAYER_STAGES)


@lru_cache
def stage_results(problem: Problem) -> Region:
    """P = pool rows, H = hidden, I = intermediate.

    | field   | shape         | written by | read by |
    |---|---|---|---|
    | fc1_out | bf16 [P, 2 I] | Linear1    | SwiGLU; columns in the order of the weights' rows |
    | fc2_out | bf16 [P, H]   | Linear2    | combine |
    """
    pool = pool_tokens(problem)
    return Region.stack(
        "results",
        Field("fc1_out", (pool, 2 * problem.intermediate), BF16, TMA_ALIGNMENT),
        Field("fc2_out", (pool, problem.hidden), BF16, TMA_ALIGNMENT),
    )


NO_RING = 2
"""Stages that a plan without a ring says it has: the fewest that a configuration may ask for."""


@dataclass(frozen=True)
class StagePlan:
    """The part of the fused kernel's plan that a stage uses; sizes that the stage does not change are read from `fused`."""

    fused: SmemPlan
    part: LayerStage

    def __getattr__(self, name: str) -> Any:
        if name == "fused":  # a copy that has no fields yet
            raise AttributeError(name)
        return getattr(self.fused, name)

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """The fused kernel's mbarriers that the stage uses, in its order."""
        return tuple(row for row in self.fused.barriers if row.name in self.part.barriers)

    @cached_property
    def region(self) -> Region:
        return Region.stack("smem", *self.part.fields(self.fused), self.fused.expert_table, *fields_of(self.barriers))

    @property
    def num_bytes(self) -> int:
        return self.region.size

    def with_stages(self, num_stages: int) -> StagePlan:
        """The plan with a ring of another depth."""
        return replace(self, fused=self.fused.with_stages(num_stages))

    def max_stages(self, capacity: int) -> int:
        """Depth of the deepest ring within `capacity` bytes."""
        if self.part.linear:
            return deepest_ring(self, capacity)
        return NO_RING if self.num_bytes <= capacity else 0

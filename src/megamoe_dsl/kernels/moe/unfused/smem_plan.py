"""Shared memory of one CTA of a stage: of the fused kernel's fields those that its roles need.  A stage's plan on an architecture is one of
these before the architecture's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ....layouts.mbarrier import MBarrier
from ....layouts.region import Field, Region
from ..layouts.smem_plan import SmemPlan, deepest_ring
from ..sm90.smem_plan import Sm90SmemPlan

NO_RING = 2
"""Stages that a plan without a ring says it has: the fewest that a configuration may ask for."""


@dataclass(frozen=True)
class StagePlan(SmemPlan):
    """`stage_fields` are those before the table of experts and the mbarriers `barrier_names`."""

    barrier_names: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def stage_fields(self) -> tuple[Field, ...]:
        """What the stage's roles share."""

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """Those of the fused kernel that its roles use."""
        every: tuple[MBarrier, ...] = super().barriers  # type: ignore[safe-super]  # the architecture's plan follows this one
        return tuple(row for row in every if row.name in self.barrier_names)

    @cached_property
    def region(self) -> Region:
        return Region.stack("smem", *self.stage_fields, self.expert_table, *self.barrier_fields)

    def max_stages(self, capacity: int) -> int:
        """Without a ring the depth says nothing."""
        return NO_RING if self.num_bytes <= capacity else 0


@dataclass(frozen=True)
class DispatchStagePlan(StagePlan):
    """Rows on their way into the pool, and counts."""

    barrier_names = ("counts", "pull")

    @property
    def stage_fields(self) -> tuple[Field, ...]:
        """As in the fused kernel."""
        return self.dispatch_fields


@dataclass(frozen=True)
class LinearStagePlan(StagePlan):
    """The ring, staging, and what is handed out to the CTA."""

    barrier_names = ("full", "empty", "acc_full", "acc_empty", "counts", "work_tile_full", "work_tile_empty")

    @property
    def stage_fields(self) -> tuple[Field, ...]:
        """The ring, and what is staged on its way out; the work tile; the table of packed weights."""
        return (*self.tile_fields, *self.before_barriers, self.work_tile_words)

    def max_stages(self, capacity: int) -> int:
        """As in the fused kernel."""
        return deepest_ring(self, capacity)


@dataclass(frozen=True)
class SwigluStagePlan(StagePlan):
    """The table of experts alone."""

    barrier_names = ("counts",)

    @property
    def stage_fields(self) -> tuple[Field, ...]:
        return ()


@dataclass(frozen=True)
class CombineStagePlan(StagePlan):
    """Slots of the warps that combine."""

    barrier_names = ("counts", "combine")

    @property
    def stage_fields(self) -> tuple[Field, ...]:
        """As in the fused kernel."""
        return (self.combine_slots,)


@dataclass(frozen=True)
class Sm90DispatchPlan(DispatchStagePlan, Sm90SmemPlan):
    """Of dispatch on SM90."""


@dataclass(frozen=True)
class Sm90LinearPlan(LinearStagePlan, Sm90SmemPlan):
    """Of a linear stage on SM90."""

    @property
    def tile_readers(self) -> int:
        """Warps that read work tiles: both loaders, the math warps."""
        return 2 + self.epilogue_warps


@dataclass(frozen=True)
class Sm90SwigluPlan(SwigluStagePlan, Sm90SmemPlan):
    """Of SwiGLU on SM90."""


@dataclass(frozen=True)
class Sm90CombinePlan(CombineStagePlan, Sm90SmemPlan):
    """Of combine on SM90."""

"""Shared memory of one CTA of a stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ....layouts.mbarrier import MBarrier
from ....layouts.region import Region
from ..layouts.smem_plan import SmemPlan, deepest_ring, fields_of
from .stage import LayerStage

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

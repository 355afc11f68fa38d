"""Shared memory of one CTA of a stage on SM100."""

from __future__ import annotations

from dataclasses import dataclass

from .....layouts.region import Field
from ...sm100.smem_plan import Sm100SmemPlan
from ..smem_plan import CombineStagePlan, DispatchStagePlan, LinearStagePlan, SwigluStagePlan


@dataclass(frozen=True)
class Sm100DispatchPlan(DispatchStagePlan, Sm100SmemPlan):
    """Of dispatch."""


@dataclass(frozen=True)
class Sm100LinearPlan(LinearStagePlan, Sm100SmemPlan):
    """Of a linear stage."""

    @property
    def stage_fields(self) -> tuple[Field, ...]:
        """And where tensor memory begins."""
        return (*super().stage_fields, *self.after_barriers)


@dataclass(frozen=True)
class Sm100SwigluPlan(SwigluStagePlan, Sm100SmemPlan):
    """Of SwiGLU."""


@dataclass(frozen=True)
class Sm100CombinePlan(CombineStagePlan, Sm100SmemPlan):
    """Of combine."""

"""What the roles of a stage need: the fused kernel's context, and what stages leave for one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....arch import SM90, SM100
from ....blocks.setup import shared_memory
from ....recipe import BF16, COMBINE
from ....schedule import FC1
from ..context import Context
from ..layouts.combine_row import CombineRow
from ..results_bf16 import Bf16Results
from ..sm90.context import Sm90Context
from ..sm100.context import Sm100Context
from .config import StageConfig
from .results import stage_results


@dataclass(frozen=True)
class StageContext(Context):
    """`config` is the stage's, `args` are `StageArguments`."""

    operands_arrive: ClassVar[bool] = False

    config: cutlass.Constexpr[Any]
    args: Any

    @property
    def outputs(self) -> Bf16Results:
        """What a linear stage leaves for the next stage is BF16, however results travel."""
        return Bf16Results(CombineRow(self.config.problem.hidden, COMBINE[BF16]), self.config.arch.adds_bf16)

    @property
    def result_phase(self) -> int:
        phase: int = self.config.phase
        return phase

    def result(self, name: str, *index: Any) -> Any:
        """Address of an element of what stages leave for one another."""
        return stage_results(self.config.problem).address(self.args.results, name, *index)

    def linear_result(self, row: Any) -> Any:
        """Where a linear stage's results of a pool row go: to the next stage, on this rank."""
        name = "fc1_out" if self.config.phase == FC1 else "fc2_out"
        return self.result(name, row)


@dataclass(frozen=True)
class Sm90StageContext(StageContext, Sm90Context):
    """On SM90."""

    config: cutlass.Constexpr[Any]

    def result_rows(self, first: Any, steps: range) -> list[Any]:
        """Where a linear stage's results of pool rows `first + step` go."""
        return [self.linear_result(first + step) for step in steps]


@dataclass(frozen=True)
class Sm100StageContext(StageContext, Sm100Context):
    """On SM100."""

    config: cutlass.Constexpr[Any]

    def result_place(self, row: Any) -> Any:
        """Pool rows say themselves where their results go."""
        return row

    def result_rows(self, place: Any, steps: range) -> list[Any]:
        """Where a linear stage's results of pool rows `place + step` go."""
        return [self.linear_result(place + step) for step in steps]


CONTEXTS = {SM90.name: Sm90StageContext, SM100.name: Sm100StageContext}


def stage_context(config: StageConfig, args: Any) -> StageContext:
    """Of this CTA."""
    rank = Int32(cute.arch.block_idx_in_cluster() if config.cluster > 1 else 0)
    return CONTEXTS[config.arch.name](config, args, shared_memory(config.smem.region), cute.arch.block_idx()[0], rank)

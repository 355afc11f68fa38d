"""What the roles of a stage need: the fused kernel's context, and what stages leave for one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass

from ...recipe import BF16, COMBINE
from ...schedule import FC1
from ..mega_moe.layouts.combine_row import CombineRow
from ..mega_moe.results_bf16 import Bf16Results
from ..mega_moe.sm90.context import Sm90Context
from .results import stage_results


@dataclass(frozen=True)
class StageContext(Sm90Context):
    """`config` is the stage's, `args` are `StageArguments`."""

    operands_arrive: ClassVar[bool] = False

    config: cutlass.Constexpr[Any]

    @property
    def outputs(self) -> Bf16Results:
        """What a linear stage leaves for the next stage is BF16, however results travel."""
        return Bf16Results(CombineRow(self.config.problem.hidden, COMBINE[BF16]), self.config.arch.adds_bf16)

    def result(self, name: str, *index: Any) -> Any:
        """Address of an element of what stages leave for one another."""
        return stage_results(self.config.problem).address(self.args.results, name, *index)

    def result_rows(self, first: Any, steps: range) -> list[Any]:
        """Where a linear stage's results of pool rows `first + step` go: to the next stage, on this rank."""
        name = "fc1_out" if self.config.phase == FC1 else "fc2_out"
        return [self.result(name, first + step) for step in steps]

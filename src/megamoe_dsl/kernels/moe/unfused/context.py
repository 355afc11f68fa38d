"""What the roles of a stage need: the fused kernel's context, and what stages leave for one another."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import cutlass

from ....schedule.fused_moe import FC1
from ..context import Context
from ..layouts.smem_plan import CombineRow
from ..results import Bf16Results
from .config import StageConfig


@dataclass(frozen=True)
class StageContext(Context):
    """`config` is the stage's; `args` have `results`."""

    operands_arrive: ClassVar[bool] = False
    result_phase = property(attrgetter("config.part.phase"))  # type: ignore[assignment]

    config: cutlass.Constexpr[StageConfig]

    @property
    def outputs(self) -> Bf16Results:
        """What a linear stage leaves for the next stage is BF16, however results travel."""
        return Bf16Results(CombineRow(self.config.problem.hidden), self.config.arch.adds_bf16)

    def result(self, name: str, *index: Any) -> Any:
        return self.config.results.address(self.args.results, name, *index)

    def result_place(self, row: Any) -> Any:
        """The pool row itself, which says where its result goes."""
        return row

    def result_rows(self, place: Any, steps: range) -> list[Any]:
        """Where results of pool rows `place + step` go: to the next stage, on this rank."""
        name = "fc1_out" if self.result_phase == FC1 else "fc2_out"
        return [self.result(name, place + step) for step in steps]

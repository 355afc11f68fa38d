"""What the roles of a stage need: the fused kernel's context, and what stages leave for one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass

from ...layouts.region import Region
from ...schedule import FC1
from ..mega_moe.sm90.context import Sm90Context
from .results import stage_results


@dataclass(frozen=True)
class StageContext(Sm90Context):
    """`config` is the stage's, `args` are `StageArguments`."""

    operands_arrive: ClassVar[bool] = False

    config: cutlass.Constexpr[Any]

    @property
    def results(self) -> Region:
        """The layout of what stages leave for one another."""
        return stage_results(self.config.problem)

    def result(self, name: str, *index: Any) -> Any:
        """Address of an element of it."""
        return self.results.address(self.args.results, name, *index)

    def result_rows(self, first: Any, steps: range) -> list[Any]:
        """Where a linear stage's results of pool rows `first + step` go: to the next stage, on this rank."""
        name = "fc1_out" if self.config.phase == FC1 else "fc2_out"
        return [self.result(name, first + step) for step in steps]

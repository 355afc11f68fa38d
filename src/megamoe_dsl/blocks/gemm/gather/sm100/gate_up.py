"""Gate and up of a tile: rows of B as the loader fetches them (sm100/weights.py), and where a thread has their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from .....device.tma import load_box_5d
from ....sm100.load import PairOperand
from ...context import GemmContext
from ...sm100.load import weight_operand
from ...work_tile import GemmTile
from ..problem import UP_FIRST, GatherGemmProblem


@dataclass(frozen=True)
class GateUpOperand(PairOperand):
    """`row` counts runs of gate of the expert."""

    expert: Int32

    def load_rows(self, destination: Any, full: Any, x: Any) -> None:
        load_box_5d(destination, self.rows, full, (x, 0, 0, self.row, self.expert))


def gate_up_operand(ctx: GemmContext, tile: GemmTile) -> GateUpOperand:
    """A CTA's part of a tile."""
    whole, config = weight_operand(ctx, tile), ctx.config
    first = (tile.n_block * config.cluster + ctx.cta_rank) * config.weights.runs(config)
    return GateUpOperand(whole.rows, whole.scales, first, whole.scale_row, whole.scale_k, whole.k_block, whole.num_bytes, tile.group)


def first_gate(problem: GatherGemmProblem) -> int:
    """Where a thread's gates are among four of its sums: two of the first run's row, two of the second's."""
    return 2 if problem.gate_up == UP_FIRST else 0

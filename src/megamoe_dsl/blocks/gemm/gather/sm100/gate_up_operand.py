"""Rows of B of gate and up of a tile, as the loader fetches them (gate_up.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from .....device.tma import load_box_5d
from ....sm100.load import PairOperand
from ...context import GemmContext
from ...sm100.load import weight_operand
from ...work_tile import GemmTile
from .gate_up import runs_of_cta


@dataclass(frozen=True)
class GateUpOperand(PairOperand):
    """`row` counts runs of gate of the expert."""

    expert: Int32

    def load_rows(self, destination: Any, full: Any, x: Any) -> None:
        load_box_5d(destination, self.rows, full, (x, 0, 0, self.row, self.expert))


def gate_up_operand(ctx: GemmContext, tile: GemmTile) -> GateUpOperand:
    """A CTA's part of a tile."""
    whole = weight_operand(ctx, tile)
    first = (tile.n_block * ctx.config.cluster + ctx.cta_rank) * runs_of_cta(ctx.config)
    return GateUpOperand(whole.rows, whole.scales, first, whole.scale_row, whole.scale_k, whole.k_block, whole.num_bytes, tile.group)

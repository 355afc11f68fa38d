"""The rows of B of a tile of gate and up: 128 of each, one after the other in the stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32

from ....hardware.operand_tile import ROW_BYTES
from ...sm90.load import Fetch, WeightTile
from ..context import GemmContext
from ..work_tile import GemmTile
from .problem import UP_FIRST


@dataclass(frozen=True)
class GateUpFetch(Fetch):
    """Rows of gate, then the `rows` of up that lie `apart` rows further on in B, or before."""

    rows: cutlass.Constexpr[int]
    apart: cutlass.Constexpr[int]

    def load(self, destination: Any, full: Any, x: Any, y: Any) -> None:
        """Gate rows from `y` on and their up rows, for a stage whose operand begins at `destination`."""
        for box in range(self.boxes):
            self.load_box(box, destination, full, x, y)

    @property
    def boxes(self) -> int:
        return 2

    def load_box(self, box: int, destination: Any, full: Any, x: Any, y: Any) -> None:
        super().load(destination + box * self.rows * ROW_BYTES, full, x, y + box * self.apart)


def gate_and_up(ctx: GemmContext, tile: GemmTile) -> WeightTile:
    """A tile's rows of B."""
    config, problem = ctx.config, ctx.config.problem
    rows, up_first = config.block_n // 2, problem.gate_up == UP_FIRST
    apart = -problem.n // 2 if up_first else problem.n // 2
    fetch = GateUpFetch(ctx.maps.weights, Int32(0), Int32(1), False, rows, apart)
    row = tile.group * problem.n + tile.n_block * rows + up_first * (problem.n // 2)
    return WeightTile(fetch, row, 0, config.block_n * ROW_BYTES)

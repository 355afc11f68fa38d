"""Epilogues of Linear2 whose results go to the ranks of their tokens, a row of `results` for each pair of a token and a slot: `send_tile`
sends them, `keep_tile` leaves that to the communication warps.

| role      | signals |
|---|---|
| send_tile | nothing: the rank barrier RESULTS follows |
| keep_tile | finished, of a part of a block's rows, per warp (release, after its results) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from .....blocks.gemm.context import GemmTile
from .....blocks.gemm.sm100.epilogue import ResultsOfTile, store_tile_of
from .....device.memory import load_u64
from ..context import EpGemm
from ..serial import count_tile


@dataclass(frozen=True)
class SentRows(ResultsOfTile):
    """Sends the rows of a tile to the ranks of their tokens."""

    ctx: EpGemm

    def begin(self, first: Any, own_row: Any) -> Any:
        """Address of what says where the row goes; those past the tile's are read, and nothing goes there."""
        return self.ctx.ep.at("destinations", self.tile.row + first + own_row)

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        return [load_u64(begun + step * 8) for step in steps]


def send_tile(ctx: EpGemm, tile: GemmTile, column: Int32, group: Int32, warp: Int32, lane: Int32) -> None:
    """A warp's part of a tile, whose sums begin at TMEM column `column`."""
    store_tile_of(ctx, tile, column, group, warp, lane, SentRows)


def keep_tile(ctx: EpGemm, tile: GemmTile, column: Int32, group: Int32, warp: Int32, lane: Int32) -> None:
    """The same to this rank's memory, where it is counted."""
    store_tile_of(ctx, tile, column, group, warp, lane)
    count_tile(ctx, tile, lane)

"""The weight loader of a GEMM that decodes: which lines of which packed tiles; the loop is a block (blocks/sm90/load.py).

waits     work_tile_full per tile; empty per stage
signals   work_tile_empty per tile; full per stage

Where warps of their own decode B, codes_empty and codes_full take the places of empty and full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.tma import load_tile_cta
from ....hardware.packed_tile import TILE_LINES, PackedPart, tiles_of
from ...sm90 import load
from ...sm90.decode import CodeStage
from ...sm90.load import Fetch, WeightTile
from ..context import GemmContext
from ..work_tile import next_tile


@dataclass(frozen=True)
class PackedLines(WeightTile):
    """Rows of packed tiles, whose codes begin at line `row`; records at line `record_row` of map `records`, behind the codes in a stage."""

    records: Int64
    record_row: Int32
    code_bytes: cutlass.Constexpr[int]

    def load(self, destination: Any, full: Any, k: Any) -> None:
        """Codes and records of K block k."""
        super().load(destination, full, k)
        load_tile_cta(destination + self.code_bytes, self.records, full, 0, self.record_row + k * self.tile_rows)


@cute.jit
def load_weights(ctx: GemmContext):
    """A part of a packed tile for every K block."""
    problem, part = ctx.config.problem, PackedPart(ctx.config.block_n)
    lines_of_b = tiles_of(problem.n) * problem.k_blocks * TILE_LINES
    tile, tiles = next_tile(ctx.first_tile)
    stage = CodeStage.of(ctx.first_stage) if ctx.config.weights.decode_warps else ctx.first_stage
    while tile.valid():
        base = tile.group * lines_of_b
        codes, records = part.first_lines(tile.n_block, problem.k_blocks)
        fetch = Fetch(ctx.maps.codes, Int32(0), Int32(1), False)
        rows = PackedLines(fetch, base + codes, TILE_LINES, part.num_bytes, ctx.maps.records, base + records, part.code_bytes)
        stage = load.load_weights(stage, rows, ctx.k_blocks, ctx.first_k_block)
        tile, tiles = next_tile(tiles)

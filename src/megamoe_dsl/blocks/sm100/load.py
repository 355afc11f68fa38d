"""The loops of the loader warps of an SM100 CTA pair: token tiles and weight tiles, with their scales, stage by stage (article 4.2, 4.3).

They wait for empty and signal full of the pair's even CTA, with the bytes that TMA brings.  The whole warp runs the loop, and one lane is
elected only where instructions are issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.mbarrier import LEADER, arrive_expect_cluster
from ...device.ring import Stage
from ...device.tma import load_tile
from ...device.warp import elect
from ...hardware.operand_tile import KBlock


@dataclass(frozen=True)
class PairOperand:
    """One CTA's part of an operand of a tile.

    rows, scales  tensor maps: of the operand, K-major, and of its scale words, [K blocks, rows]; of one without scales any
    row           first row of this part in the operand
    scale_row     index of its first scale word in a row of the scales; scale_k is the scales' row of the first K block
    k_block       the K of a stage
    num_bytes     that TMA brings for a stage
    first_k       first K block of the rows
    """

    rows: Int64
    scales: Int64
    row: Int32
    scale_row: Int32
    scale_k: Any
    k_block: cutlass.Constexpr[KBlock]
    num_bytes: cutlass.Constexpr[int]
    first_k: Any = 0

    def load_rows(self, destination: Any, full: Any, k: Any) -> None:
        load_tile(destination, self.rows, full, (self.first_k + k) * self.k_block.row_bytes, self.row)


@dataclass(frozen=True)
class TiledWeights(PairOperand):
    """Weights that lie in tiles; `row` counts these."""

    def load_rows(self, destination: Any, full: Any, k: Any) -> None:
        load_tile(destination, self.rows, full, 0, self.row + k * self.k_block.weight_tiles, 0)


@cute.jit
def load_tokens(stage: Stage, tile: PairOperand, k_blocks: Int32):
    """Fills `tokens` and, of scaled ones, `sfa` of `k_blocks` stages; returns the stage after them."""
    for k in cutlass.range(k_blocks, unroll=1):
        stage.wait_empty()
        full = stage.full & LEADER
        if elect():
            arrive_expect_cluster(full, tile.num_bytes)
            tile.load_rows(stage.shared("tokens"), full, k)
            if cutlass.const_expr(tile.k_block.words > 0):
                load_tile(stage.shared("sfa"), tile.scales, full, tile.scale_row, tile.scale_k + k * tile.k_block.words)
        stage = stage.next()
    return stage


@cute.jit
def load_weights(stage: Stage, tile: PairOperand, k_blocks: Int32):
    """Fills `weights` and, of scaled ones, `sfb` of `k_blocks` stages; returns the stage after them."""
    for k in cutlass.range(k_blocks, unroll=1):
        stage.wait_empty()
        full = stage.full & LEADER
        if elect():
            arrive_expect_cluster(full, tile.num_bytes)
            tile.load_rows(stage.shared("weights"), full, k)
            if cutlass.const_expr(tile.k_block.words > 0):
                load_tile(stage.shared("sfb"), tile.scales, full, tile.scale_row, tile.scale_k + k * tile.k_block.words)
        stage = stage.next()
    return stage

"""The two loader warps of a CTA of a pair: which rows, of which matrix; the loops are blocks (blocks/sm100/load.py).

| role         | waits                                     | signals                                        |
|---|---|---|
| load_tokens  | work_tile_full per tile; empty per stage  | work_tile_empty per tile; full of the even CTA |
| load_weights | work_tile_full per tile; empty per stage  | work_tile_empty per tile; full of the even CTA |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from ....device.tma import load_box_5d
from ....hardware.operand_tile import SF_ATOM_ROWS
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import mma_tokens
from ...sm100 import load
from ...sm100.load import PairOperand
from ..context import GemmContext, GemmTile, next_tile
from ..problem import UP_FIRST, GatherGemmProblem


@cute.jit
def load_tokens(ctx: GemmContext):
    """Each CTA of the pair: its half of the tile's rows of A, and scales of all, from the atom on that the first row's are in."""
    config = ctx.config
    ctx.begin(Role.TOKEN_LOADER)
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        ctx.wait_rows(tile)
        ctx.stamp(Activity.WAIT_TOKENS, tile)
        # Halves of what the MMA covers, not of block_m: the second CTA's rows start right after the first's.
        row = tile.row + ctx.cta_rank * (mma_tokens(tile.valid_m) >> 1)
        atom, num_bytes = tile.row & -SF_ATOM_ROWS, config.stage.token_transaction
        operand = PairOperand(ctx.maps.tokens, ctx.maps.sfa, row, atom, 0, config.k_block, num_bytes)
        stage = load.load_tokens(stage, operand, Int32(config.k_blocks))
        ctx.stamp(Activity.LOAD, tile)
        tile, tiles = next_tile(tiles)


def weight_operand(ctx: GemmContext, tile: GemmTile) -> PairOperand:
    """A CTA's half of a tile's rows of B, and their scales."""
    config, problem = ctx.config, ctx.config.problem
    column = (tile.n_block * config.cluster + ctx.cta_rank) * config.stage.weight_rows
    row, words, num_bytes = tile.group * problem.n + column, tile.group * problem.k_words, config.stage.weight_transaction
    return PairOperand(ctx.maps.weights, ctx.maps.sfb, row, column, words, config.k_block, num_bytes)


@cute.jit
def load_weights(ctx: GemmContext):
    """Each CTA: its rows of B of every tile, and their scales."""
    ctx.begin(Role.WEIGHT_LOADER)
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        stage = load.load_weights(stage, ctx.config.weights.operand(ctx, tile), Int32(ctx.config.k_blocks))
        ctx.stamp(Activity.LOAD, tile)
        tile, tiles = next_tile(tiles)


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

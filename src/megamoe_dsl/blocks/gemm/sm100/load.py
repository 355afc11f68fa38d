"""The two loader warps of a CTA of a pair, which rows, of which matrix, and the MMA warp; the loops, and what they wait for and signal, are
blocks (blocks/sm100)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....device import tcgen05
from ....device.ring import Ring, Stage
from ....device.tma import load_tile
from ....hardware.operand_tile import BOX_BYTES, K_ROWS, SF_ATOM_ROWS
from ....schedule.fused_moe import mma_tokens
from ... import tiles
from ...sm100 import load, mma
from ...sm100.load import PairOperand
from ...sm100.mma import PairTile
from ..context import GemmContext, GemmTile
from ..problem import UP_FIRST, GatherGemmProblem


def load_tokens(ctx: GemmContext) -> None:
    """Each CTA of the pair: its half of the tile's rows of A, and scales of all, from the atom on that the first row's are in."""

    def fill(ctx: GemmContext, tile: GemmTile, stage: Stage) -> Any:
        config, first, begin = ctx.config, ctx.first_k_block_of(tile), ctx.source_row(tile)
        # Halves of what the MMA covers, not of block_m: the second CTA's rows start right after the first's.
        row = begin + ctx.cta_rank * (mma_tokens(tile.valid_m) >> 1)
        atom, num_bytes = begin & -SF_ATOM_ROWS, config.stage.token_transaction
        operand = PairOperand(ctx.maps.tokens, ctx.maps.sfa, row, atom, first, config.k_block, num_bytes, first)
        return load.load_tokens(stage, operand, ctx.k_blocks_of(tile))

    tiles.load_tokens(ctx, ctx.first_stage, fill, lambda ctx, tile: ctx.wait_rows(tile))


def weight_operand(ctx: GemmContext, tile: GemmTile) -> PairOperand:
    """A CTA's half of a tile's rows of B, and their scales."""
    config, problem = ctx.config, ctx.config.problem
    column = (tile.n_block * config.cluster + ctx.cta_rank) * config.stage.weight_rows
    row, words, num_bytes = tile.group * problem.group_rows + column, tile.group * problem.k_words, config.stage.weight_transaction
    return PairOperand(ctx.maps.weights, ctx.maps.sfb, row, column, words, config.k_block, num_bytes)


def load_weights(ctx: GemmContext) -> None:
    """Each CTA: its rows of B of every tile, and their scales."""

    def fill(ctx: GemmContext, tile: GemmTile, stage: Stage) -> Any:
        return load.load_weights(stage, ctx.config.weights.operand(ctx, tile), ctx.k_blocks_of(tile))

    tiles.load_weights(ctx, ctx.first_stage, fill)


def summed_weights(ctx: GemmContext, tile: GemmTile) -> PairOperand:
    """A CTA's columns of the right side."""
    config = ctx.config
    column = (tile.n_block * config.cluster + ctx.cta_rank) * config.stage.weight_rows
    first, num_bytes = ctx.first_k_block_of(tile), config.stage.weight_transaction
    return PairOperand(ctx.maps.weights, ctx.maps.sfb, column, column, first, config.k_block, num_bytes, first)


@dataclass(frozen=True)
class GateUpOperand(PairOperand):
    """`row` counts runs of gate of the expert."""

    expert: Any = 0

    def load_rows(self, destination: Any, full: Any, k: Any) -> None:
        load_tile(destination, self.rows, full, k * self.k_block.row_bytes, 0, 0, self.row, self.expert)


def gate_up_operand(ctx: GemmContext, tile: GemmTile) -> GateUpOperand:
    """A CTA's part of a tile."""
    whole, config = weight_operand(ctx, tile), ctx.config
    first = (tile.n_block * config.cluster + ctx.cta_rank) * config.weights.runs(config)
    return GateUpOperand(whole.rows, whole.scales, first, whole.scale_row, whole.scale_k, whole.k_block, whole.num_bytes, 0, tile.group)


@dataclass(frozen=True)
class TransposedOperand(PairOperand):
    """`row` is the first row of K, `scale_row` the first column; a box has 64 columns of a stage's rows of K."""

    def load_rows(self, destination: Any, full: Any, k: Any) -> None:
        for box in range(self.num_bytes // BOX_BYTES):
            x = (self.scale_row + box * K_ROWS) * 2
            load_tile(destination + box * BOX_BYTES, self.rows, full, x, self.row + k * K_ROWS)


def transposed_operand(ctx: GemmContext, tile: GemmTile) -> TransposedOperand:
    """A CTA's columns of a B whose rows are K."""
    whole = weight_operand(ctx, tile)
    row = tile.group * ctx.config.problem.k
    return TransposedOperand(whole.rows, whole.scales, row, whole.scale_row, 0, whole.k_block, whole.num_bytes)


def first_gate(problem: GatherGemmProblem) -> int:
    """Where a thread's gates are among four of its sums: two of the first run's row, two of the second's."""
    return 2 if problem.gate_up == UP_FIRST else 0


ROWS_PER_COLUMN = 32  # of A, whose scales share a column of tensor memory


def issue_mma(ctx: GemmContext) -> None:
    mma.issue_mma(ctx, pair_tile)


def pair_tile(ctx: GemmContext, tile: GemmTile, acc: Ring) -> PairTile:
    """The tile as tensor cores see it."""
    config, tmem = ctx.config, ctx.config.tmem
    mn_major = (config.weights.mn_major, config.rows.mn_major)
    instruction = tcgen05.instruction(config.mma, mma_tokens(tile.valid_m), mn_major)
    first_scale = config.rows.row_in_atom(ctx, tile) // ROWS_PER_COLUMN if tmem.scaled else 0
    return PairTile(tmem.accumulator(acc.index), instruction, first_scale, config.mma, config.k_block, tmem, mn_major)

"""Biases of a group's columns, added to a thread's sums before an epilogue rounds them."""

from __future__ import annotations

from typing import Any, cast

import cutlass
from cutlass import Int64

from ...device.memory import load_float, load_floats
from ..sm90.tokens_as_m import RowShare
from ..sm90.tokens_as_n import BLOCK_ROWS, ColumnShare
from .arguments import BiasedGemmArguments
from .context import GemmContext
from .gather.epilogue_gate_up import column_of
from .problem import BF16
from .work_tile import GemmTile


def with_bias(ctx: GemmContext, tile: GemmTile, me: RowShare | ColumnShare, sums: Any) -> Any:
    """The sums as they are where the problem has no biases."""
    if not ctx.config.problem.biases:
        return sums
    return (columns_with_bias if ctx.config.swap_ab else rows_with_bias)(ctx, tile, me, sums)


def bias_address(ctx: GemmContext, tile: GemmTile, column: int, first: Any, together: int) -> Any:
    """Address of the biases of columns `column + first` of a tile and the next, `together` in all; past the last column that of the last
    ones, whose sums nobody stores."""
    config, problem = ctx.config, ctx.config.problem
    row = (column_of(config, tile, column) if problem.gate_up else tile.n_block * config.block_n + column) + first
    if problem.n % config.block_n:
        row = cutlass.min(row, problem.n - together)
    return cast(BiasedGemmArguments, ctx.args).bias + (Int64(tile.group) * problem.n + row) * (2 if problem.biases == BF16 else 4)


def rows_with_bias(ctx: GemmContext, tile: GemmTile, me: Any, sums: Any) -> tuple[tuple[Any, ...], ...]:
    """Adds biases to a share whose rows of A are the wgmma's rows: a thread has two of them, and two columns of every eight."""
    bf16, own, out = ctx.config.problem.biases == BF16, me.first_chunk * (me.chunks * me.chunk_rows) + me.pair, []
    for c, part in enumerate(sums):
        values = []
        for j in range(me.chunk_rows // 8):
            biases = load_floats(bias_address(ctx, tile, c * me.chunk_rows + 8 * j, own, 2), bf16)
            values += [part[4 * j + 2 * h + e] + biases[e] for h in range(2) for e in range(2)]
        out.append(tuple(values))
    return tuple(out)


def columns_with_bias(ctx: GemmContext, tile: GemmTile, me: Any, sums: Any) -> tuple[tuple[Any, ...], ...]:
    """Adds biases to a share whose rows of A are the wgmma's columns: a thread has two of every eight, and two columns of D a block."""
    bf16, own = ctx.config.problem.biases == BF16, me.group * (me.blocks * BLOCK_ROWS) + me.warp * 16 + me.row
    out = []
    for b, part in enumerate(sums):
        biases = [load_float(bias_address(ctx, tile, b * BLOCK_ROWS + 8 * h, own, 1), bf16) for h in range(2)]
        out.append(tuple(value + biases[i // 2 % 2] for i, value in enumerate(part)))
    return tuple(out)

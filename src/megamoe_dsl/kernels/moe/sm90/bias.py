"""Sums of a thread with biases (../bias.py): in place of the sums, before either epilogue."""

from __future__ import annotations

from typing import Any

from ....blocks.sm90.tokens_as_m import CHUNK_ROWS
from ....blocks.sm90.tokens_as_n import BLOCK_ROWS
from ....device.memory import load_f32, load_f32x2
from ..bias import add_bias, bias_address, weighs_bias
from ..context import Context
from .smem_plan import TILE_ROWS


def with_bias(ctx: Context, tile: Any, me: Any, phase: int, acc: Any) -> Any:
    """The sums as they are in a layer without biases."""
    if not ctx.config.problem.biases:
        return acc
    return (columns_with_bias if ctx.config.swap_ab else rows_with_bias)(ctx, tile, me, phase, acc)


def columns_with_bias(ctx: Context, tile: Any, me: Any, phase: int, acc: Any) -> tuple[tuple[Any, ...], ...]:
    """The sums of a share whose tokens are columns: a thread has four weight rows, and two tokens of every eight."""
    first = tile.n_block * TILE_ROWS + me.group * (2 * BLOCK_ROWS) + me.warp * 16 + me.row
    address = bias_address(ctx, phase, tile.expert, first)
    biases = [[load_f32(address + (BLOCK_ROWS * b + 8 * h) * 4) for h in range(2)] for b in range(len(acc))]
    groups = ctx.config.block_m // 8
    weights: list[Any] = [(None, None)] * groups
    if weighs_bias(ctx, phase):
        tokens = ctx.at("fc1_topk_weights", ctx.config.first_row(tile.pool_block) + me.pair)
        weights = [load_f32x2(tokens + g * 32) for g in range(groups)]
    return tuple(
        tuple(
            add_bias(ctx, phase, part[4 * g + 2 * h + q], biases[b][h], weights[g][q])
            for g in range(groups)
            for h in range(2)
            for q in range(2)
        )
        for b, part in enumerate(acc)
    )


def rows_with_bias(ctx: Context, tile: Any, me: Any, phase: int, acc: Any) -> tuple[tuple[Any, ...], ...]:
    """The sums of a share whose tokens are rows: a thread has two tokens, and two weight rows of every eight."""
    address = bias_address(ctx, phase, tile.expert, tile.n_block * TILE_ROWS + me.first_chunk * CHUNK_ROWS + me.pair)
    weights: list[Any] = [None, None]
    if weighs_bias(ctx, phase):
        tokens = ctx.at("fc1_topk_weights", ctx.config.first_row(tile.pool_block) + me.token)
        weights = [load_f32(tokens + 32 * h) for h in range(2)]
    out = []
    for c, part in enumerate(acc):
        values = []
        for j in range(CHUNK_ROWS // 8):
            biases = load_f32x2(address + (CHUNK_ROWS * c + 8 * j) * 4)
            values += [add_bias(ctx, phase, part[4 * j + 2 * h + e], biases[e], weights[h]) for h in range(2) for e in range(2)]
        out.append(tuple(values))
    return tuple(out)

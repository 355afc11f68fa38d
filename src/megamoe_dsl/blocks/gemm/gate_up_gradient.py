"""The epilogue of the backward pass on SM90: sums are gradients of the activated product before top-k weights, dY W2; what leaves are
gradients of gate and up, the product times its weight, and parts of each
row's product of sums and activated product, over 128 columns each, whatever the tile: the gradient of its weight.

A thread reads the gate and up of its two rows and writes where they lie, eight columns of the tile at a time, four bytes or eight a lane:
the four threads of a quad have 16 or 32 bytes of a row.
"""

from __future__ import annotations

from typing import Any
from typing import cast as cast_to

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64, Uint32

from ...device.cast import pack_bf16, permute, unpack_bf16
from ...device.memory import load_f32, load_two, load_u32, store_f32, store_u32, store_v2
from ...device.warp import shuffle_xor_f32, store_where
from ..sm90.tokens_as_m import RowShare
from ..swiglu import gradients
from .arguments import GradientArguments
from .context import GemmContext, GemmTile
from .problem import DOT_COLUMNS, INTERLEAVED, UP_FIRST

AT_ONCE = 64
"""Columns whose gate and up are on their way together."""
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632


@cute.jit
def finish_gradient(ctx: GemmContext, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's 16 rows of a tile."""
    args, problem = cast_to(GradientArguments, ctx.args), ctx.config.problem
    first_column, parts = tile.n_block * ctx.config.block_n, ctx.config.block_n // DOT_COLUMNS
    for h in cutlass.range_constexpr(2):
        token = me.token + 8 * h
        there = token < tile.valid_m
        row = Int64(tile.row + cutlass.min(token, tile.valid_m - 1))
        weight = load_f32(args.row_weights + row * 4)
        for part in cutlass.range_constexpr(parts):
            dot = Float32(0.0)
            for first in cutlass.range_constexpr(part * DOT_COLUMNS, (part + 1) * DOT_COLUMNS, AT_ONCE):
                columns = [first_column + first + step + me.pair for step in range(0, AT_ONCE, 8)]
                pairs = [load_gate_up(problem, args.gate_up, row, cutlass.min(column, problem.n - 2)) for column in columns]
                for i in cutlass.range_constexpr(len(columns)):
                    place = (first // 8 + i) * 4 + 2 * h
                    dot = store_channels(ctx, row, columns[i], there, sums[0][place : place + 2], pairs[i], weight, dot)
            for mask in cutlass.range_constexpr(1, 3):
                dot = dot + shuffle_xor_f32(dot, mask)
            number = tile.n_block * parts + part
            if there & (me.pair == 0) & (first_column + part * DOT_COLUMNS < problem.n):
                store_f32(args.dots + (Int64(number) * ctx.args.m + row) * 4, dot)


def store_channels(ctx: GemmContext, row: Any, column: Any, there: Any, raw: Any, gate_up: Any, weight: Any, dot: Any) -> Any:
    """Two channels of a row to memory, if they and the row are there; `dot` with what they add to the gradient of the row's weight."""
    args, problem = cast_to(GradientArguments, ctx.args), ctx.config.problem
    products, of_gate, of_up = zip(
        *(gradients(problem.product, gate, up, one * weight) for gate, up, one in zip(*gate_up, raw, strict=True)), strict=True
    )
    rounded = unpack_bf16(pack_bf16(*products))
    weighted = pack_bf16(*(one * weight for one in rounded))
    gate_word, up_word = pack_bf16(*of_gate), pack_bf16(*of_up)

    def store() -> None:
        store_u32(args.weighted + (row * problem.n + column) * 2, weighted)
        if problem.gradient == INTERLEAVED:
            words = permute(gate_word, up_word, LOW_HALVES), permute(gate_word, up_word, HIGH_HALVES)
            store_v2(ctx.args.d + (row * problem.n + column) * 4, *words)
        else:
            gate, up = places(problem, row, column)
            store_u32(ctx.args.d + gate, gate_word)
            store_u32(ctx.args.d + up, up_word)

    inside = column < problem.n
    store_where(there & inside, store)
    for one, value in zip(raw, rounded, strict=True):
        added = Float32(cutlass.select_(inside, one * value, Float32(0.0)))
        dot = dot + added
    return dot


def places(problem: Any, row: Any, column: Any) -> tuple[Any, Any]:
    """Bytes at which a row's gate and up of a column lie, where each has a half of the row."""
    halves = (row * 2 * problem.n + column) * 2, (row * 2 * problem.n + problem.n + column) * 2
    return halves[::-1] if problem.gradient == UP_FIRST else halves


def load_gate_up(problem: Any, address: Any, row: Any, column: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Gates of two columns of a row, and their ups."""
    if problem.gradient == INTERLEAVED:
        first, second = load_two(address + (row * problem.n + column) * 4)
        words: Any = permute(first, second, LOW_HALVES), permute(first, second, HIGH_HALVES)
    else:
        words = tuple(Uint32(load_u32(address + place)) for place in places(problem, row, column))
    return unpack_bf16(words[0]), unpack_bf16(words[1])

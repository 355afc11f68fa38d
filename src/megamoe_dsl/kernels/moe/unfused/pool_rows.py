"""A grid's warps over the received tokens, each token in as many parts as its row is cut into.  `push_results` sends their results to the
ranks that they came from, into their combine rows.  `activate_part` makes Linear2's operands of Linear1's BF16: SwiGLU times the top-k
weight, quantized, in the pool; a lane has 16 channels.

waits     counts, once
signals   nothing: the rank barrier BEFORE_COMBINE follows, or the next launch

| | results | scale | in fc1_out a lane has gate and up of |
|---|---|---|---|
| SM90 | E4M3 | a power of two in FP32 for 128 channels, eight lanes | even channels, then of odd ones (sm90/epilogue_rows.py) |
| SM100 | E4M3 or E2M1 | UE8M0 for 32 channels, two lanes | eight channels, then of the next eight |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....blocks.swiglu import activate_bf16
from ....blocks.tiles import SharedTable
from ....device import cast
from ....device.mbarrier import wait
from ....device.memory import load_constant_v4, load_u64, store_f32, store_u8, store_v2, store_v4
from ....device.warp import shuffle_xor_f32
from ....layouts.arith import div, minimum
from ....recipe import E2M1
from ..layouts.smem_plan import LANE_VECTOR
from ..pool import Cursor, advance_to_valid, weight_of
from .context import StageContext

VECTOR_BYTES = 16
RUN_BYTES = 16  # eight columns of fc1_out


@dataclass(frozen=True)
class PartTable(SharedTable):
    """The table of experts where every token counts as `parts`."""

    parts: cutlass.Constexpr[int]

    def tokens(self, expert: Any) -> Any:
        return SharedTable.tokens(self, expert) * self.parts


@cute.jit
def each_part(ctx: StageContext, warp: Int32, warps: cutlass.Constexpr[int], parts: cutlass.Constexpr[int], work: Callable[..., None]):
    """One of a CTA's `warps` warps, once the table is there: `work` gets the pool row and the number of each of its parts of tokens."""
    wait(ctx.barrier("counts"), Int32(0))
    table, experts = PartTable(ctx.shared("expert_table"), parts), ctx.config.problem.experts_per_rank
    # Consecutive parts go to different CTAs, so that all have work when there are few tokens.
    cursor = advance_to_valid(Cursor(table, Int32(0), ctx.sm + warp * ctx.config.num_sms, table.tokens(Int32(0))), experts)
    while cursor.expert < experts:
        token = div(cursor.index, parts)
        work(ctx, cursor.table.first_block(cursor.expert) * ctx.config.block_m + token, cursor.index - token * parts)
        cursor = advance_to_valid(dataclasses.replace(cursor, index=cursor.index + ctx.config.num_sms * warps), experts)


def push_results(ctx: StageContext, warp: Any, lane: Any) -> None:
    """Sends one warp's share of the results."""
    form, channels = ctx.results, ctx.config.push_channels
    value_bytes, steps = form.row.value_bytes, range(0, channels, LANE_VECTOR)

    def push(ctx: StageContext, row: Any, part: Any) -> None:
        offset = Int64(part * (2 * channels) + lane * VECTOR_BYTES)
        first = offset >> 1 if form.row.scaled else offset
        source, destination = ctx.result("fc2_out", row) + offset, load_u64(ctx.at("token_src_metadata", row)) + first
        # All loads are issued before the first is used, so that their latencies overlap.
        vectors = [load_constant_v4(source + 2 * step) for step in steps]
        for step, vector in zip(steps, vectors, strict=True):
            form.send(destination + value_bytes * step, first + value_bytes * step, lane, vector)

    each_part(ctx, warp, ctx.config.epilogue_warps, ctx.config.problem.hidden // channels, push)


LANE_CHANNELS = 16


@cute.jit
def activate_part(ctx: StageContext, row: Int32, part: Int32):
    """Up to 512 channels of a token."""
    form, promoted, lane = ctx.config.problem.formats.hidden, ctx.config.problem.formats.promoted, cute.arch.lane_idx()
    sixteen, lanes, sharing = part * 32 + lane, ctx.config.problem.intermediate // LANE_CHANNELS, form.channels // LANE_CHANNELS
    # Lanes past the last channels take part in the shuffles, with the last ones' values.
    there = minimum(sixteen, lanes - 1)
    column, apart = ((there >> 2) * 128 + (there & 3) * 16, 64) if promoted else (there * (2 * LANE_CHANNELS), LANE_CHANNELS)
    first = ctx.result("fc1_out", row, column)
    weight, halves = weight_of(ctx, row), []
    for half in cutlass.range_constexpr(2):
        gates, ups = (load_constant_v4(first + (2 * apart * half + offset)) for offset in (0, RUN_BYTES))
        pairs = [activate_bf16(ctx, gate, up, (weight, weight)) for gate, up in zip(gates, ups, strict=True)]
        halves.append([value for pair in pairs for value in pair])
    values = [one for pair in zip(*halves, strict=True) for one in pair] if promoted else halves[0] + halves[1]
    peak = reduce(cast.abs_max, values)
    for step in cutlass.range_constexpr(sharing.bit_length() - 1):
        peak = cast.abs_max(peak, shuffle_xor_f32(peak, 1 << step))
    packed = form.element == E2M1
    exponent = cast.scale_exponent(peak, cast.E2M1_MAX if packed else cast.E4M3_MAX)
    inverse = cast.inverse_scale(exponent)
    scaled = [value * inverse for value in values]
    if sixteen < lanes:
        address = ctx.at("fc2_acts", row, sixteen * form.row_bytes(LANE_CHANNELS))
        if cutlass.const_expr(packed):
            store_v2(address, cast.pack_e2m1(*scaled[:8]), cast.pack_e2m1(*scaled[8:]))
        else:
            store_v4(address, tuple(cast.pack_e4m3(*scaled[i : i + 4]) for i in range(0, LANE_CHANNELS, 4)))
        if (lane & (sharing - 1)) == 0:
            store_scale(ctx, row, sixteen // sharing, exponent)


def store_scale(ctx: StageContext, row: Any, index: Any, exponent: Any) -> None:
    """Scale number `index` of a pool row: an FP32 number, or a byte of the words that `tcgen05.cp` reads."""
    if ctx.config.problem.formats.promoted:
        store_f32(ctx.at("fc2_sf", index, row), cast.f32_of_bits(exponent << 23))
        return
    pool_block = div(row, ctx.config.block_m)
    word = ctx.at("fc2_sf", index >> 2, ctx.config.sf_row(pool_block, row - pool_block * ctx.config.block_m))
    store_u8(word + Int64(index & 3), exponent)

"""A grid's warps over the received tokens, each token in as many parts as its row is cut into.  `push_results` sends their results to the
ranks that they came from, into their combine rows.  `activate_part` and `activate_scaled` make Linear2's operands of Linear1's BF16: SwiGLU
times the top-k weight, quantized, in the pool.

waits     counts, once
signals   nothing: the rank barrier BEFORE_COMBINE follows, or the next launch

E4M3 with one power-of-two scale per token and 128 channels: eight lanes have 16 channels each, in fc1_out four runs of eight columns,
gate and up of one run's channels, then of the other's, which lie between them (kernels/moe/sm90/epilogue_rows.py).

On SM100 results are E4M3 or E2M1 with one UE8M0 scale per 32 channels.  A lane has 16 channels: in fc1_out four runs of eight columns, gate
and up of eight channels, then of the next eight.  Two lanes share a scale.
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
from ....hardware.operand_tile import CHANNELS_PER_SCALE
from ....layouts.arith import div, minimum
from ....recipe import E2M1
from ..layouts.smem_plan import LANE_VECTOR
from ..pool import Cursor, advance_to_valid, weight_of
from .config import BLOCKS_PER_PART
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


@cute.jit
def activate_part(ctx: StageContext, row: Int32, part: Int32):
    """Up to four blocks of 128 channels of a token."""
    blocks = ctx.config.fc1_n_blocks
    lane = cute.arch.lane_idx()
    block, sixteen = part * BLOCKS_PER_PART + (lane >> 3), lane & 7
    # Lanes past the last block take part in the shuffles, with the last block's values.
    column = minimum(block, blocks - 1) * 256 + (sixteen >> 2) * 128 + (sixteen & 3) * 16
    weight = weight_of(ctx, row)
    values = []
    for run in cutlass.range_constexpr(2):
        first = ctx.result("fc1_out", row, column + 64 * run)
        gates, ups = load_constant_v4(first), load_constant_v4(first + RUN_BYTES)
        pairs = [activate_bf16(ctx, gate, up, (weight, weight)) for gate, up in zip(gates, ups, strict=True)]
        values.append([value for pair in pairs for value in pair])
    peak = cast.max_over_quad(reduce(cast.abs_max, [value for eight in values for value in eight]))
    peak = cast.abs_max(peak, shuffle_xor_f32(peak, 4))
    exponent = cast.scale_exponent(peak)
    inverse = cast.inverse_scale(exponent)
    words = [cast.pack_e4m3(*(values[run][i + e] * inverse for e in range(2) for run in range(2))) for i in range(0, 8, 2)]
    if block < blocks:
        store_v4(ctx.at("fc2_acts", row, block * 128 + sixteen * 16), tuple(words))
        if sixteen == 0:
            store_f32(ctx.at("fc2_sf", block, row), cast.f32_of_bits(exponent << 23))


LANE_CHANNELS = 16


@cute.jit
def activate_scaled(ctx: StageContext, row: Int32, part: Int32):
    """Up to 512 channels of a token."""
    config, form = ctx.config, ctx.config.problem.formats.hidden
    lane, lanes = cute.arch.lane_idx(), config.problem.intermediate // LANE_CHANNELS
    sixteen = part * 32 + lane
    # Lanes past the last channels take part in the shuffle, with the last ones' values.
    first = ctx.result("fc1_out", row, minimum(sixteen, lanes - 1) * (2 * LANE_CHANNELS))
    weight = weight_of(ctx, row)
    runs = [load_constant_v4(first + run * RUN_BYTES) for run in range(4)]
    values = []
    for gates, ups in (runs[:2], runs[2:]):
        for gate, up in zip(gates, ups, strict=True):
            values += activate_bf16(ctx, gate, up, (weight, weight))
    peak = reduce(cast.abs_max, values)
    peak = cast.abs_max(peak, shuffle_xor_f32(peak, 1))
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
        if (lane & 1) == 0:
            scale = sixteen * LANE_CHANNELS // CHANNELS_PER_SCALE
            pool_block = div(row, config.block_m)
            word = ctx.at("fc2_sf", scale >> 2, config.sf_row(pool_block, row - pool_block * config.block_m))
            store_u8(word + Int64(scale & 3), exponent)

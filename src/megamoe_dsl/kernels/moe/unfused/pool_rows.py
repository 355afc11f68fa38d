"""A grid's warps over the received tokens, each token in as many parts as its row is cut into.  `push_results` sends their results to the
ranks that they came from, into their combine rows.

waits     counts, once
signals   nothing: the rank barrier BEFORE_COMBINE follows
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import wait
from ....device.memory import load_constant_v4, load_u64
from ....layouts.arith import div
from ..layouts.smem_plan import LANE_VECTOR
from ..pull import Cursor, advance_to_valid
from ..tile_scheduler import SharedTable
from .context import StageContext


@dataclass(frozen=True)
class PartTable(SharedTable):
    """The table of experts where every token counts as `parts`."""

    parts: cutlass.Constexpr[int]

    def tokens(self, expert: Any) -> Any:
        """Parts of all tokens that a local expert received."""
        return SharedTable.tokens(self, expert) * self.parts


@cute.jit
def first_part(ctx: StageContext, warp: Int32, parts: cutlass.Constexpr[int]) -> Cursor:
    """Waits for the table.  A warp's first part."""
    wait(ctx.barrier("counts"), Int32(0))
    table = PartTable(ctx.shared("expert_table"), parts)
    # Consecutive parts go to different CTAs, so that all have work when there are few tokens.
    cursor = Cursor(table, Int32(0), ctx.sm + warp * ctx.config.num_sms, table.tokens(Int32(0)))
    return advance_to_valid(cursor, ctx.config.problem.experts_per_rank)


@cute.jit
def next_part(ctx: StageContext, cursor: Cursor, warps: cutlass.Constexpr[int]) -> Cursor:
    """The next part of one of a CTA's `warps` warps; its expert is `experts_per_rank` when there is none."""
    following = dataclasses.replace(cursor, index=cursor.index + ctx.config.num_sms * warps)
    return advance_to_valid(following, ctx.config.problem.experts_per_rank)


def place(ctx: StageContext, cursor: Cursor, parts: int) -> tuple[Any, Any]:
    """Pool row and number of the part."""
    token = div(cursor.index, parts)
    return cursor.table.first_block(cursor.expert) * ctx.config.block_m + token, cursor.index - token * parts


VECTOR_BYTES = 16


@cute.jit
def push_results(ctx: StageContext, warp: Int32, lane: Int32):
    """Sends one warp's share of the results."""
    config, form = ctx.config, ctx.results
    value_bytes = form.row.value_bytes
    channels = config.push_channels
    parts = config.problem.hidden // channels
    cursor = first_part(ctx, warp, parts)
    while cursor.expert < config.problem.experts_per_rank:
        row, part = place(ctx, cursor, parts)
        offset = Int64(part * (2 * channels) + lane * VECTOR_BYTES)
        first = offset >> 1 if form.row.scaled else offset
        source, destination = ctx.result("fc2_out", row) + offset, load_u64(ctx.at("token_src_metadata", row)) + first
        steps = range(0, channels, LANE_VECTOR)
        # All loads are issued before the first is used, so that their latencies overlap.
        vectors = [load_constant_v4(source + 2 * step) for step in steps]
        for step, vector in zip(steps, vectors, strict=True):
            form.send(destination + value_bytes * step, first + value_bytes * step, lane, vector)
        cursor = next_part(ctx, cursor, config.epilogue_warps)

"""Results of the received tokens to the ranks that the tokens came from, into their combine rows.

waits     counts, once
signals   nothing: the rank barrier BEFORE_COMBINE follows
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.memory import load_constant_v4, load_u64
from ..layouts.smem_plan import LANE_VECTOR
from .context import StageContext
from .pool_rows import first_part, next_part, place

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

"""The epilogue of Linear2 that sends results to the ranks of their tokens: a row of `results` for each pair of a token and a slot.

signals   nothing: the rank barrier RESULTS follows
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int64

from ....blocks.gemm.context import GemmTile
from ....blocks.gemm.store import MATRIX, stage_rows
from ....blocks.gemm.tile import WARPS_PER_GROUP
from ....blocks.sm90.tokens_as_m import RowShare
from ....device.memory import load_shared_v4, load_u64, store_v4
from ....device.warp import sync_warp
from ....hardware.operand_tile import CHUNK, Swizzle
from .context import EpGemm


@cute.jit
def finish_tile(ctx: EpGemm, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile, its 16 rows by way of SMEM, so that neighboring lanes write neighboring bytes of a row."""
    config, shape = ctx.config, ctx.config.tile
    lanes = shape.store_columns // MATRIX  # of a row
    row, chunk = me.lane // lanes, me.lane % lanes
    steps = range(0, shape.store_rows, 32 // lanes)
    rows = [cutlass.min(me.warp_token + row + step, tile.valid_m - 1) for step in steps]
    # Loaded before the first result is staged, so that their latencies overlap.
    destinations = [load_u64(ctx.ep.at("destinations", tile.row + one)) for one in rows]
    swizzle = Swizzle(shape.store_swizzle)
    for box in cutlass.range_constexpr(shape.boxes(me.half)):
        staging = ctx.shared("cd", me.group * WARPS_PER_GROUP + me.warp, box % config.epilogue_buffers)
        stage_rows(config, staging, me, sums, box)
        sync_warp()
        column = tile.n_block * config.block_n + me.first_chunk * (me.chunks * me.chunk_rows) + box * shape.store_columns + chunk * MATRIX
        for i, step in enumerate(steps):
            inside = me.warp_token + row + step < tile.valid_m
            if cutlass.const_expr(config.problem.n % config.block_n != 0):
                inside = inside & (column < config.problem.n)
            if inside:
                value = load_shared_v4(staging + swizzle((row + step) * (lanes * CHUNK) + chunk * CHUNK))
                store_v4(destinations[i] + Int64(column) * 2, value)
        if cutlass.const_expr(config.epilogue_buffers == 1 or box == shape.boxes(me.half) - 1):
            sync_warp()  # all have read what is staged next

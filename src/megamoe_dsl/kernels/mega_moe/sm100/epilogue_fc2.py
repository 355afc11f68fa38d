"""Linear2 tile: rows of results straight into the combine buffers of the tokens' ranks (article 4.5.5).

signals   nothing per tile: the rank barrier BEFORE_COMBINE covers all remote writes

Accumulators are transposed through SMEM so that 16 lanes write 128 channels of one token.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int64

from ....device.cast import pack_bf16
from ....device.matrix import store_transposed_b16
from ....device.memory import load_shared_v4, load_u64
from ....device.tcgen05 import load_columns
from .context import Sm100Context
from .epilogue_tile import HALF_BYTES, fc2_channel_bytes, fc2_read_address, fc2_read_row, fc2_write_address
from .tile import CLUSTER

ROWS_PER_STEP = 8  # tokens that the four warps write at a time, two per warp


@cute.jit
def finish_fc2(ctx: Sm100Context, tile):
    """One tile, `store_block_m` tokens at a time."""
    config, block, form = ctx.config, tile.block, ctx.results
    rows = config.store_block_m
    n_block = block.n_block * CLUSTER + ctx.cta_rank
    row = block.pool_block * config.block_m
    cd = ctx.shared("cd", tile.group)
    write = fc2_write_address(cd, tile.warp, tile.lane, rows)
    own_row = fc2_read_row(tile.warp, tile.lane)
    read = fc2_read_address(cd, own_row, tile.lane, rows)
    channel_bytes = Int64(fc2_channel_bytes(n_block, tile.lane, form.row.value_bytes))
    valid = block.valid_m
    for first in cutlass.range(0, valid, rows, unroll=1):
        metadata = ctx.at("token_src_metadata", row + first + own_row)
        groups = load_columns(tile.column + first, rows // 8)
        # After this barrier the buffer is free: the warpgroup has read the pass before from it, and the TMA stores of a Linear1 tile before
        # this one have read it, for which the leader has waited.
        tile.sync_group()
        for g, v in enumerate(groups):
            store_transposed_b16(write + g * (8 * HALF_BYTES), [pack_bf16(v[2 * k], v[2 * k + 1]) for k in range(4)])
        destinations = [load_u64(metadata + step * 8) for step in range(0, rows, ROWS_PER_STEP)]
        tile.sync_group()
        for i, step in enumerate(range(0, rows, ROWS_PER_STEP)):
            if first + own_row + step < valid:
                form.send(destinations[i] + channel_bytes, channel_bytes, tile.lane, load_shared_v4(read + step * HALF_BYTES))

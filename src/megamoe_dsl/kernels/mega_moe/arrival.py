"""The two waits for what other CTAs write into the pool, on both architectures.  Each has a watchdog, and each is an acquire: what was
written before the counter reached its value is visible after the wait."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from ...device.memory import fence_async_global
from ...device.sync import Equals32, Equals64, spin
from ...schedule import FC1
from .context import Context
from .layouts.watchdog import Wait
from .table import as_signed64


@cute.jit
def wait_tokens(ctx: Context, tile: Any):
    """Until dispatch has written all that belongs to the tile's tokens."""
    count = Equals32(ctx.at("fc1_arrival_count", tile.pool_block), tile.valid_m, "gpu")
    spin(count, ctx.watchdog, Wait.FC1_ARRIVAL, tile.pool_block)


@cute.jit
def wait_operands(ctx: Context, tile: Any):
    """Until the tile's tokens, or for Linear2 the Linear1 outputs of its block, are in the pool, visible to TMA."""
    if tile.phase == FC1:
        wait_tokens(ctx, tile)
    else:
        finished = (1 << ctx.config.fc2_arrival_bits) - 1
        mask = Equals64(ctx.at("fc2_arrival_mask", tile.pool_block), as_signed64(finished))
        spin(mask, ctx.watchdog, Wait.FC2_ARRIVAL, tile.pool_block)
    # Other CTAs wrote the scales through the generic proxy, and TMA reads them through the async proxy: one fence here, in the reader,
    # replaces a fence in every writer.
    fence_async_global()

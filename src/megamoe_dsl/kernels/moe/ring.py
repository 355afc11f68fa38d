"""The rows of a pool that is a ring: dispatch waits until the token block that had them before has been read (schedule/ring.py).

What Linear1 reads of a block's rows it has read when its outputs are there, and Linear2 waits for those.  So the rows are free when Linear2
has read what it needs: its operands, which the math warps have multiplied, and the places of its results.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import reduce_add_u32
from ...device.sync import Equals32, spin
from ...device.warp import ballot
from ...layouts.arith import select
from .context import Context
from .layouts.watchdog import Wait


@cute.jit
def free_rows(ctx: Context, tile: Any, lane: Int32, places: list[Any], valid: list[Any]):
    """A math warp, when it has read what a Linear2 tile needs of the pool: at last the `places` of its results, of `valid` tokens and of
    rows without one.  It comes before the results leave, because a release waits for what was stored, and these go to other GPUs.

    A lane's release says nothing of loads of other lanes that nothing has used.  So it depends on all that was loaded: an address is not 0.
    """
    if cutlass.const_expr(ctx.config.ring_blocks > 0):
        read = reduce(or_, (select(one, place, Int64(1)) for place, one in zip(places, valid, strict=True)))
        if (lane == 0) & (ballot(Int32(read != 0)) != 0):
            reduce_add_u32(ctx.at("fc2_read_count", tile.pool_block), 1, "release", "gpu")


@cute.jit
def wait_rows(ctx: Context, pool_block: Int32):
    """A dispatch warp, before it writes into the rows of a token block."""
    config = ctx.config
    if cutlass.const_expr(config.ring_blocks > 0):
        before = pool_block - config.ring_blocks
        if before >= 0:
            readers = config.fc2_n_blocks * config.epilogue_warps
            count = Equals32(ctx.at("fc2_read_count", before), Int32(readers), "gpu")
            spin(count, ctx.watchdog, Wait.ROWS, pool_block)

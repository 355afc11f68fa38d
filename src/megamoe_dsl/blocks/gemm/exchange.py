"""A tile of which each CTA of a cluster has multiplied a half of K: every sum goes to the CTA that finishes it.

CTA r finishes what its warpgroup r has of the tile, if there is one; its other warpgroup sends its sums to the same warpgroup of the other
CTA.  What a thread sends lies in SMEM as vectors of four, each beside those of the warpgroup's other threads.

| warpgroup | waits          | signals                       |
|---|---|---|
| finishing | exchange_full  | the other CTA's exchange_empty |
| sending   | exchange_empty | the other CTA's exchange_full |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device.cast import f32_of_bits
from ...device.mbarrier import arrive_expect, release_cluster, wait
from ...device.memory import load_shared_v4
from ...device.ring import TileQueue
from ...device.warp import in_cta, store_async_v4
from ..sm90.math_thread import MathThread
from . import epilogue_columns, epilogue_rows
from .barriers import VECTOR
from .context import GemmContext
from .work_tile import GemmTile

POSITIVE = 0x7FFFFFFF  # all bits but the sign


@cute.jit
def finish_tile(ctx: GemmContext, tile: GemmTile, me: MathThread, sums: Any, after_next: TileQueue):
    """Sums of this CTA's half of K to D, or to the CTA that finishes them; `after_next` is the place of the tile after the next one."""
    phase = after_next.ring.index  # of two places: this tile's, too
    if me.group == ctx.cta_rank:
        epilogue = epilogue_columns if ctx.config.swap_ab else epilogue_rows
        epilogue.finish_tile(ctx, tile, me, add_theirs(ctx, me, sums, phase))
    else:
        send(ctx, me, sums, phase)


@cute.jit
def add_theirs(ctx: GemmContext, me: MathThread, sums: Any, phase: Int32):
    """The sums with the other CTA's added, whose place is given back."""
    full, vectors = ctx.barrier("exchange_full"), ctx.config.smem.vectors_sent
    if thread_of(me) == 0:
        arrive_expect(full, ctx.config.smem.region["exchange"].field.num_bytes)
    wait(full, phase)
    theirs: list[Any] = []
    for i in cutlass.range_constexpr(vectors):
        theirs += load_shared_v4(ctx.shared("exchange", i, thread_of(me)))
    read = Int32(0)
    for word in theirs:
        read = read | Int32(word)
    release_cluster(in_cta(ctx.barrier("exchange_empty"), 1 - ctx.cta_rank), read & POSITIVE)
    values = iter(theirs)
    return tuple(tuple(one + f32_of_bits(next(values)) for one in part) for part in sums)


@cute.jit
def send(ctx: GemmContext, me: MathThread, sums: Any, phase: Int32):
    """The sums to the other CTA, once it has read those of the tile before."""
    other = 1 - ctx.cta_rank
    full = in_cta(ctx.barrier("exchange_full"), other)
    values = [one for part in sums for one in part]
    wait(ctx.barrier("exchange_empty"), phase ^ 1)
    for i in cutlass.range_constexpr(ctx.config.smem.vectors_sent):
        place = in_cta(ctx.shared("exchange", i, thread_of(me)), other)
        store_async_v4(place, tuple(values[VECTOR * i : VECTOR * (i + 1)]), full)


def thread_of(me: MathThread) -> Any:
    """Number of a thread in its warpgroup."""
    return me.warp * 32 + me.lane

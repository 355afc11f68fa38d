"""Epilogue warps of an SM100 CTA: their loop over tiles, and a tile's results from tensor memory to rows in global memory, a pass of tokens
at a time (article 4.5.5), rounded to BF16 and transposed through SMEM so that 16 lanes write 128 channels of one token.

waits     work_tile_full and acc_full, per tile
signals   work_tile_empty and acc_empty of the even CTA, per tile
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.cast import pack_bf16
from ...device.mbarrier import LEADER, arrive_cluster, wait
from ...device.memory import load_shared_v4, store_transposed_b16
from ...device.ring import Ring, TileQueue
from ...device.tcgen05 import fence_after_sync, fence_before_sync, load_columns
from ...device.warp import named_barrier, sync_warp
from ...layouts.records import Activity
from ..tiles import TileContext
from .epilogue_tile import HALF_BYTES, channel_bytes, read_address, read_row, write_address

WARPGROUP = 128  # threads
ROWS_PER_STEP = 8  # tokens that the four warps write at a time, two per warp


@dataclass(frozen=True)
class EpilogueThread:
    """`group` counts the CTA's epilogue warpgroups, `warp` the warps of a warpgroup."""

    group: Int32
    warp: Int32
    lane: Int32

    @staticmethod
    def of(thread: Any) -> EpilogueThread:
        return EpilogueThread(thread >> 7, (thread >> 5) & 3, thread & 31)


@cute.jit
def finish_tiles(
    ctx: TileContext, tile: Any, tiles: TileQueue, me: EpilogueThread, acc: Ring, first: Any, finish: Callable[..., Any], waits: Any = None
):
    """All tiles of an epilogue warp, from `tile` on, which `finish` gets with the first TMEM column of their sums.  The warp's accumulators
    are those of the ring `acc`, from number `first` on; `waits` is what a tile needs besides its sums, if anything."""
    while tile.valid():
        if cutlass.const_expr(waits is not None):
            waits(ctx, tile)
        index = acc.index + first
        wait(ctx.barrier("acc_full", index), acc.phase)
        fence_after_sync()
        ctx.stamp(Activity.WAIT_STAGE, tile)
        finish(ctx, tile, me, ctx.config.tmem.accumulator(index))
        fence_before_sync()
        sync_warp()
        if me.lane == 0:
            arrive_cluster(ctx.barrier("acc_empty", index) & LEADER)
        ctx.stamp(Activity.EPILOGUE, tile)
        acc = acc.next()
        tile, tiles = ctx.next_tile(tiles)


@dataclass(frozen=True)
class ResultPart(EpilogueThread):
    """The part of a result tile that one warpgroup stores."""

    column: Int32  # the accumulator's first TMEM column
    staging: Int32  # shared address of the warpgroup's result tile
    valid: Int32  # tokens of the tile
    n_block: Int32  # which 128 weight rows, of all
    tokens: cutlass.Constexpr[int]  # of a pass
    barriers: cutlass.Constexpr[int]  # number of the named barrier of the first warpgroup
    every: cutlass.Constexpr[int] = 1  # the warpgroup's next pass is so many on
    first: Any = 0  # token of its first pass

    def sync_group(self) -> None:
        named_barrier(self.group + self.barriers, WARPGROUP)


@cute.jit
def stage_pass(part: ResultPart, rows: Any, write: Int32, first: Int32):
    """A pass of tokens from tensor memory to the warpgroup's result tile; `write` is the warp's `write_address` there.
    `rows.finished(first, sums)` is rounded: of the sums that a thread has of 8 tokens, its own first one being `first` of the tile."""
    groups = load_columns(part.column + first, part.tokens // 8)
    # After this barrier the buffer is free: the warpgroup has read the pass before from it, and where TMA may still read what was in it
    # before, those who stored it have waited for that.
    part.sync_group()
    for g, sums in enumerate(groups):
        v = rows.finished(first + 8 * g + (part.lane & 3) * 2, sums)
        store_transposed_b16(write + g * (8 * HALF_BYTES), [pack_bf16(v[2 * k], v[2 * k + 1]) for k in range(4)])


@cute.jit
def store_results(part: ResultPart, rows: Any):
    """All passes of a warpgroup; one of its warps.  `rows` says, besides `finished`, where results go, and in which format:

    value_bytes                      that a value of a row takes
    begin(first, own_row)            before a pass from token `first` of the tile on: what `addresses` needs for the row `own_row` after it
    addresses(begun, steps)          of the rows that lie `steps` rows after that
    has(row)                         whether a lane's channels of a row of the tile are to be written
    send(place, first, lane, words)  a lane's 8 channels, BF16 in four words, to their place: byte `first` of a row
    """
    tokens = part.tokens
    write = write_address(part.staging, part.warp, part.lane, tokens)
    own_row = read_row(part.warp, part.lane)
    read = read_address(part.staging, own_row, part.lane, tokens)
    offset = Int64(channel_bytes(part.n_block, part.lane, rows.value_bytes))
    for first in cutlass.range(part.first, part.valid, part.every * tokens, unroll=1):
        begun = rows.begin(first, own_row)
        stage_pass(part, rows, write, first)
        destinations = rows.addresses(begun, range(0, tokens, ROWS_PER_STEP))
        part.sync_group()
        for i, step in enumerate(range(0, tokens, ROWS_PER_STEP)):
            if rows.has(first + own_row + step):
                rows.send(destinations[i] + offset, offset, part.lane, load_shared_v4(read + step * HALF_BYTES))

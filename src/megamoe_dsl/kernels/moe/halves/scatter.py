"""Results of Linear2 to the ranks of their tokens, a row of `results` for each pair of a token and a slot: the epilogue sends them, or
leaves a tile in this rank, from where communication warps send it.

| role                 | waits              | signals |
|---|---|---|
| send_rows, send_tile |                    | nothing: the rank barrier RESULTS follows |
| keep_rows, keep_tile |                    | finished, of a part of a block's rows, per warp (release, after its results) |
| send_results         | finished, per task | nothing: the rank barrier RESULTS follows |

A task is a part of 32 rows; tasks of sending come before those of summing, from the same counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....blocks.gemm import store
from ....blocks.gemm.context import GemmTile
from ....blocks.gemm.sm100.epilogue import ResultsOfTile, store_tile_of
from ....blocks.gemm.store import MATRIX, stage_rows
from ....blocks.gemm.tile import WARPS_PER_GROUP
from ....blocks.rank_barrier import Group
from ....blocks.sm90.share import RowShare
from ....blocks.sm100.results import EpilogueThread
from ....device.memory import load_shared_v4, load_u64, load_v4, reduce_add_u32, store_v4
from ....device.stamps import stamp
from ....device.sync import Equals32, spin
from ....device.tma import wait_group
from ....device.warp import sync_warp
from ....hardware.operand_tile import CHUNK, Swizzle
from ....layouts.arith import div, minimum
from ....layouts.records import Activity
from .context import EpContext, EpGemm
from .layouts.symmetric import EpWait
from .scheduler import LANES, RowGroups, advance_to, clear_counters, first_groups, next_task


@cute.jit
def send_rows(ctx: EpGemm, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile on SM90, its 16 rows by way of SMEM, so that neighboring lanes write neighboring bytes of a row."""
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
            if me.warp_token + row + step < tile.valid_m:
                value = load_shared_v4(staging + swizzle((row + step) * (lanes * CHUNK) + chunk * CHUNK))
                store_v4(destinations[i] + Int64(column) * 2, value)
        if cutlass.const_expr(config.epilogue_buffers == 1 or box == shape.boxes(me.half) - 1):
            sync_warp()  # all have read what is staged next


VECTOR_BYTES = 16
IN_FLIGHT = 4
"""Vectors of a lane that are on their way at a time."""


def part_of_rows(ctx: EpContext, row: Any, part: Any) -> Any:
    return div(row, ctx.config.block_m) * ctx.config.token_blocks + part


@cute.jit
def keep_rows(ctx: EpGemm, tile: GemmTile, me: RowShare, sums: Any):
    """A warp's part of a tile on SM90 to this rank's memory, where it is counted."""
    store.finish_rows(ctx, tile, me, sums)
    if me.lane == 0:
        wait_group(0)
    count_tile(ctx, tile, me.lane)


@cute.jit
def count_tile(ctx: EpGemm, tile: GemmTile, lane: Int32):
    """A warp whose part of a tile is in memory."""
    sync_warp()
    if lane == 0:
        counter = part_of_rows(ctx.ep, tile.row, div(tile.n_block, ctx.ep.config.tiles_of_part))
        reduce_add_u32(ctx.ep.at("finished", ctx.ep.epoch & 1, counter), 1, "release", "gpu")


@cute.jit
def send_results(ctx: EpContext, group: Group) -> tuple[Int32, Int32]:
    """A communication warp: tasks of sending, until there are none.  How many there are, and the number of the task that the warp has next,
    which is one of summing."""
    clear_counters(ctx, group, "finished", ctx.config.num_finished)
    parts, task = ctx.config.token_blocks, next_task(ctx)
    groups = advance_to(ctx, first_groups(ctx), div(task, parts))
    while groups.expert < ctx.config.problem.experts_per_rank:
        send_part(ctx, groups, task)
        stamp(ctx, Activity.COMBINE, task)
        task = next_task(ctx)
        groups = advance_to(ctx, groups, div(task, parts))
    return groups.number * parts, task


@cute.jit
def send_part(ctx: EpContext, groups: RowGroups, task: Int32):
    """A task: vectors of 16 bytes, row by row."""
    config, lane = ctx.config, cute.arch.lane_idx()
    number = div(task, config.token_blocks)
    part, first = task - number * config.token_blocks, groups.row(number)
    # Counted by all math warps of the CTAs that have a tile together.
    warps, counter = config.math_warps * (config.gemm.cluster // config.gemm.blocks_per_fetch), part_of_rows(ctx, first, part)
    tiles = Int32(config.tiles_of_part * warps)
    spin(Equals32(ctx.at("finished", ctx.epoch & 1, counter), tiles, "gpu"), ctx.watchdog, EpWait.TILES, counter)
    vectors, offset = config.part_bytes // VECTOR_BYTES, part * config.part_bytes
    total = groups.count(number) * vectors
    for start in cutlass.range(0, total, IN_FLIGHT * LANES, unroll=1):
        places = [start + LANES * i + lane for i in range(IN_FLIGHT)]
        rows = [div(minimum(one, total - 1), vectors) for one in places]
        offsets = [Int64(offset + (minimum(one, total - 1) - row * vectors) * VECTOR_BYTES) for one, row in zip(places, rows, strict=True)]
        # All are on their way before the first leaves.
        destinations = [load_u64(ctx.at("destinations", first + row)) for row in rows]
        values = [load_v4(ctx.at("kept", first + row) + within) for row, within in zip(rows, offsets, strict=True)]
        for i in cutlass.range_constexpr(IN_FLIGHT):
            if places[i] < total:
                store_v4(destinations[i] + offsets[i], values[i])


@dataclass(frozen=True)
class SentRows(ResultsOfTile):
    """Sends the rows of a tile to the ranks of their tokens."""

    ctx: EpGemm

    def begin(self, first: Any, own_row: Any) -> Any:
        return self.ctx.ep.at("destinations", self.tile.row + first + own_row)

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        return [load_u64(begun + step * 8) for step in steps]


def send_tile(ctx: EpGemm, tile: GemmTile, me: EpilogueThread, column: Any) -> None:
    """A warp's part of a tile on SM100, whose sums begin at TMEM column `column`."""
    store_tile_of(ctx, tile, me, column, SentRows)


def keep_tile(ctx: EpGemm, tile: GemmTile, me: EpilogueThread, column: Any) -> None:
    """The same to this rank's memory, where it is counted."""
    store_tile_of(ctx, tile, me, column)
    count_tile(ctx, tile, me.lane)

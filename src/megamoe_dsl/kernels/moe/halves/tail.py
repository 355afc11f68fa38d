"""The second stage of a dispatch in two: warps of the last SMs copy rows whose token lies in another row, and count blocks.

waits     stored, of every row: its token has been stored; pull, per chunk
signals   arrivals of a block, for 32 rows at a time (release, after the rows)

The first stage, the other SMs' warps, stores a token once, and says of each of its rows where that is (dispatch.py).
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32

from ....device.memory import load_u32, reduce_add_u32
from ....device.sync import Equals32, spin
from ....device.tma import store_bytes, wait_group, wait_group_read
from ....device.warp import ballot, lowest_bit, shuffle, sync_warp
from ..pull import load_chunk, move_row
from .context import EpContext, counter_of
from .layouts.symmetric import EpWait
from .scheduler import RowGroups, advance_to, first_groups
from .smem_plan import COMMUNICATION_WARPS


@cute.jit
def copy_rows(ctx: EpContext, warp: Int32):
    """A communication warp: every so many-th group of rows."""
    config = ctx.config
    number = (ctx.sm - config.fetching_sms) * COMMUNICATION_WARPS + warp
    groups, moved = advance_to(ctx, first_groups(ctx), number), Int32(0)
    while groups.expert < config.problem.experts_per_rank:
        moved = copy_group(ctx, groups, number, warp, moved)
        number = number + config.tail_sms * COMMUNICATION_WARPS
        groups = advance_to(ctx, groups, number)


@cute.jit
def copy_group(ctx: EpContext, groups: RowGroups, number: Int32, warp: Int32, moved: Int32):
    """A group of rows; `moved` counts the rows that the warp has copied, and is returned."""
    lane, first, count = cute.arch.lane_idx(), groups.row(number), groups.count(number)
    source = first + lane
    if lane < count:
        spin(Equals32(ctx.at("stored", first + lane), ctx.epoch + 1, "gpu"), ctx.watchdog, EpWait.STORED, first + lane)
        source = load_u32(ctx.at("sources", first + lane))
    sync_warp()
    mask = ballot(Int32(source != first + lane))
    while mask != 0:
        index = lowest_bit(mask)
        moved = copy_row(ctx, shuffle(source, index), first + index, warp, moved)
        mask = mask & (mask - 1)
    if lane == 0:
        wait_group(0)
        reduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, counter_of(ctx, groups.expert, first)), count, "release", "gpu")
    sync_warp()
    return moved


@cute.jit
def copy_row(ctx: EpContext, source: Int32, row: Int32, warp: Int32, moved: Int32):
    """A row by way of the warp's slots."""
    lane, x, destination = cute.arch.lane_idx(), ctx.at("fc1_acts", source), ctx.at("fc1_acts", row)
    if lane == 0:
        wait_group_read(0)  # the stores of the row before have read the slots
    sync_warp()
    load_chunk(ctx, x, warp, 0, ctx.config.smem.pull_slots)
    move_row(ctx, x, lambda offset, place, num_bytes: store_bytes(destination + offset, place, num_bytes), warp, lane, moved)
    return moved + 1

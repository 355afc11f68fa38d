"""The communication warps of dispatch: every rank fetches the tokens of its experts, and writes each to the rows of all its experts here.

waits     INPUTS: every rank's tokens and tables are there; pull, per chunk
signals   arrivals of a row's block, per row (release, after row and scales), or stored, where tail warps count rows; READ, when nothing of
          other ranks is read any more

A task, of one warp, is some of the pairs that one rank has for this one; ranks take turns, each begins with itself.

In a dispatch of two stages a token is stored once, and each of its rows says where that is.  Warps of the last SMs (`copy_rows`) wait until
it is stored, copy it into its other rows, and add to the arrivals of a block, for 32 rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....blocks.rank_barrier import Group, await_ranks, signal
from ....device.memory import load_u32, load_u64, reduce_add_u32, store_release_u32, store_u32, store_u64
from ....device.stamps import begin, stamp
from ....device.sync import Equals32, spin
from ....device.tma import wait_group, wait_group_read
from ....device.warp import ballot, lowest_bit, shuffle, sync_warp, warp_max_u32
from ....hardware.operand_tile import CHANNELS_PER_WORD
from ....layouts.arith import ceil_div, div, minimum, select
from ....layouts.records import Activity, Role
from ..pool import load_chunk, move_row
from .config import COMMUNICATION_WARPS
from .context import EpContext, counter_of
from .layouts.symmetric import EpBarrier, EpWait
from .scheduler import RowGroups, advance_to, clear_counters, end_launch, first_groups, next_task

NOWHERE = -1


@dataclass(frozen=True)
class Places:
    """Rows that a token goes to, and their counters, or the rows again if tail warps count: lane s has those of slot s, bit s of `mask`."""

    rows: Int32
    counter: Int32
    mask: Int32


@dataclass(frozen=True)
class Moved:
    """What a warp has moved: `uses` rows, of which the last is not counted yet, for which each lane that has stored it has a `counter`."""

    uses: Int32
    counter: Int32


@cute.jit
def count_tasks(ctx: EpContext):
    """How many tasks dispatch has, the same number for each rank."""
    pairs, lane = Int32(0), cute.arch.lane_idx()
    if lane < ctx.num_ranks:
        pairs = load_u32(ctx.at("recv_pairs", lane))
    return ceil_div(warp_max_u32(pairs), ctx.config.task_tokens) * ctx.num_ranks


@cute.jit
def dispatch(ctx: EpContext, group: Group):
    """All communication warps of a CTA."""
    begin(ctx, Role.DISPATCH)
    if ctx.sm == 0:
        # What peers read was written before this launch.
        signal(ctx, group, EpBarrier.INPUTS)
    clear_counters(ctx, group, "arrivals", ctx.config.num_arrivals)
    await_ranks(ctx, group, EpBarrier.INPUTS, ctx.epoch + 1)
    stamp(ctx, Activity.WAIT_RANKS)
    if cutlass.const_expr(ctx.config.tail_sms > 0):
        if ctx.sm < ctx.config.fetching_sms:
            fetch_all(ctx, group.thread >> 5)
        else:
            copy_rows(ctx, group.thread >> 5)
    else:
        fetch_all(ctx, group.thread >> 5)
    end_launch(ctx, group)
    stamp(ctx, Activity.WAIT_RANKS)


@cute.jit
def fetch_all(ctx: EpContext, warp: Int32):
    """Tasks, by one warp, until there are none."""
    total = count_tasks(ctx)
    moved, task = Moved(Int32(0), Int32(NOWHERE)), next_task(ctx)
    while task < total:
        moved = fetch_tokens(ctx, task, warp, moved)
        stamp(ctx, Activity.PULL, task)
        task = next_task(ctx)
    count_row(ctx, moved)


@cute.jit
def fetch_tokens(ctx: EpContext, task: Int32, warp: Int32, moved: Moved):
    """A task, by one warp."""
    config, ranks, lane = ctx.config, ctx.num_ranks, cute.arch.lane_idx()
    turn = div(task, ranks)
    source = ctx.args.rank + (task - turn * ranks)
    source = select(source >= ranks, source - ranks, source)
    first = turn * config.task_tokens
    count = minimum(load_u32(ctx.at("recv_pairs", source)) - first, config.task_tokens)
    peer, pairs = ctx.peer(source), Int32(0)
    if lane < count:
        pairs = load_u32(ctx.at_peer(peer, "send_pairs", ctx.args.rank, first + lane))
    for index in cutlass.range(count, unroll=1):
        moved = fetch_token(ctx, peer, shuffle(pairs, index), warp, moved)
    return moved


@cute.jit
def fetch_token(ctx: EpContext, peer: Int64, pair: Int32, warp: Int32, moved: Moved):
    """Moves one token: TMA copies its row through SMEM, while the lanes copy its scales.  The row before it is counted meanwhile."""
    config, problem, lane = ctx.config, ctx.config.problem, cute.arch.lane_idx()
    token = div(pair, problem.topk)
    x = ctx.at_peer(peer, "x", token)
    if moved.counter >= 0:
        wait_group_read(0)  # the stores of the row before have read the slots
    sync_warp()
    load_chunk(ctx, x, warp, 0, config.smem.pull_slots)
    # All remote loads are issued before the first is used, so that their latencies overlap.
    scales = load_scales(ctx, peer, token)
    places, weight = places_of(ctx, peer, token, pair - token * problem.topk), Int32(0)
    if cutlass.const_expr(config.trains):
        weight = load_u32(ctx.at_peer(peer, "topk_weights", token, minimum(lane, problem.topk - 1)))
    count_row(ctx, moved)
    if cutlass.const_expr(problem.formats.scaled):
        store_scales(ctx, places, scales)
    # Each lane that has a place stores the row there, or the first one alone, and says where its result is to go.
    here = places.rows >= 0
    first = shuffle(places.rows, lowest_bit(places.mask)) if config.tail_sms > 0 else places.rows
    if here:
        store_u64(ctx.at("destinations", places.rows), ctx.at_peer(peer, "results", token * problem.topk + lane))
        if cutlass.const_expr(config.trains):
            store_u32(ctx.args.row_weights + Int64(places.rows) * 4, weight)
        if cutlass.const_expr(config.tail_sms > 0):
            store_u32(ctx.at("sources", places.rows), first)
    sync_warp()
    stores_row = places.rows == first if config.tail_sms > 0 else here
    move_row(ctx, x, ctx.at("fc1_acts", places.rows), warp, select(stores_row, Int32(0), Int32(1)), moved.uses)
    return Moved(moved.uses + 1, places.counter)


def load_scales(ctx: EpContext, peer: Int64, token: Int32) -> list[tuple[Any, Any]]:
    """Loads the scales of a token, if it has any, 32 words at a time: the word that the lane has, and its value."""
    if not ctx.config.problem.formats.scaled:
        return []
    words, lane = ctx.config.problem.hidden // CHANNELS_PER_WORD, cute.arch.lane_idx()
    own = [minimum(lane + first, words - 1) for first in range(0, words, 32)]
    source = ctx.at_peer(peer, "x_sf", token)
    return [(word, load_u32(source + Int64(word) * 4)) for word in own]


@cute.jit
def store_scales(ctx: EpContext, places: Places, scales: list[tuple[Any, Any]]):
    """Stores the scales of a token for all of its rows."""
    lane, count = cute.arch.lane_idx(), ctx.config.problem.hidden // CHANNELS_PER_WORD
    mask = places.mask
    while mask != 0:
        row = shuffle(places.rows, lowest_bit(mask))
        scale_row = ctx.config.part.scale_row(row)
        for i, (word, scale) in enumerate(scales):
            if lane + 32 * i < count:
                store_u32(ctx.at("fc1_sf", word, scale_row), scale)
        mask = mask & (mask - 1)


@cute.jit
def count_row(ctx: EpContext, moved: Moved):
    """The lanes that have a place of a row, once it is in memory."""
    if cutlass.const_expr(ctx.config.tail_sms > 0):
        wait_group(0)  # of the lane that has stored it for all
        sync_warp()
    if moved.counter >= 0:
        if cutlass.const_expr(ctx.config.tail_sms > 0):
            store_release_u32(ctx.at("stored", moved.counter), ctx.epoch + 1, "gpu")
        else:
            wait_group(0)
            reduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, moved.counter), 1, "release", "gpu")
    sync_warp()


@cute.jit
def places_of(ctx: EpContext, peer: Int64, token: Int32, slot: Int32) -> Places:
    """The rows of a token's experts on this rank; without token saving, of its slot alone."""
    problem, lane = ctx.config.problem, cute.arch.lane_idx()
    row, counter = Int32(NOWHERE), Int32(NOWHERE)
    if lane < problem.topk:
        expert = Int32(load_u64(ctx.at_peer(peer, "topk_idx", token, lane)))
        to = load_u32(ctx.at_peer(peer, "pair_rows", token, lane))
        here = (to >= 0) & (div(expert, problem.experts_per_rank) == ctx.args.rank)
        if cutlass.const_expr(not ctx.config.token_saving):
            here = here & (lane == slot)
        row = select(here, to, Int32(NOWHERE))
        own = to if ctx.config.tail_sms > 0 else counter_of(ctx, expert - ctx.args.rank * problem.experts_per_rank, to)
        counter = select(here, own, Int32(NOWHERE))
    return Places(row, counter, ballot(Int32(row >= 0)))


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
    move_row(ctx, x, destination, warp, lane, moved)
    return moved + 1

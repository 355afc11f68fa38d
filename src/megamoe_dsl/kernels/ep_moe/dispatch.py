"""The communication warps of dispatch: every rank fetches the tokens of its experts, and writes each to the rows of all its experts here.

waits     INPUTS: every rank's tokens and tables are there; task_full, per task; pull, per chunk
signals   arrivals of a row's block, per row (release, after row and scales); READ, when nothing of other ranks is read any more

A task is some of the pairs that one rank has for this one; ranks take turns, each begins with itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...blocks.rank_barrier import Group, await_ranks, signal
from ...device.memory import load_u32, load_u64, reduce_add_u32, store_u32
from ...device.tma import store_bytes, wait_group
from ...device.warp import ballot, lowest_bit, shuffle, sync_warp, warp_max_u32
from ...hardware.scale_factors import CHANNELS_PER_WORD
from ...layouts.arith import ceil_div, div, minimum, select
from ..mega_moe.pull import load_chunk, move_row
from .context import EpContext
from .end import end_launch
from .layouts.pool import pool_rows
from .layouts.symmetric import EpBarrier
from .scheduler import CommunicationTask, next_task
from .smem_plan import COMMUNICATION_WARPS

THREADS = 32 * COMMUNICATION_WARPS
NOWHERE = -1


@dataclass(frozen=True)
class Places:
    """Rows that a token goes to: lane s has that of slot s, which bit s of `mask` says."""

    rows: Int32
    mask: Int32


@cute.jit
def count_tasks(ctx: EpContext):
    """The scheduler warp: how many tasks dispatch has, the same number for each rank."""
    pairs, lane = Int32(0), cute.arch.lane_idx()
    if lane < ctx.num_ranks:
        pairs = load_u32(ctx.at("recv_pairs", lane))
    return ceil_div(warp_max_u32(pairs), ctx.config.task_tokens) * ctx.num_ranks


@cute.jit
def dispatch(ctx: EpContext, group: Group):
    """All communication warps of a CTA."""
    if ctx.sm == 0:
        # What peers read was written before this launch.
        signal(ctx, group, EpBarrier.INPUTS)
    clear_arrivals(ctx, group)
    await_ranks(ctx, group, EpBarrier.INPUTS, ctx.epoch + 1)
    warp, uses = group.thread >> 5, Int32(0)
    task, tasks = next_task(ctx.first_task)
    while task.valid():
        uses = fetch_tokens(ctx, task, warp, uses)
        task, tasks = next_task(tasks)
    end_launch(ctx, group)


@cute.jit
def clear_arrivals(ctx: EpContext, group: Group):
    """The counters of the next launch."""
    blocks = pool_rows(ctx.config.problem) // ctx.config.block_m
    for block in cutlass.range(ctx.sm * THREADS + group.thread, blocks, ctx.num_sms * THREADS, unroll=1):
        store_u32(ctx.at("arrivals", 1 - (ctx.epoch & 1), block), 0)


@cute.jit
def fetch_tokens(ctx: EpContext, task: CommunicationTask, warp: Int32, uses: Int32):
    """A warp's tokens of a task; `uses` counts the rows that it has moved."""
    config, ranks = ctx.config, ctx.num_ranks
    turn = div(task.index, ranks)
    source = ctx.args.rank + (task.index - turn * ranks)
    source = select(source >= ranks, source - ranks, source)
    first = turn * config.task_tokens
    pairs = minimum(load_u32(ctx.at("recv_pairs", source)) - first, config.task_tokens)
    peer = ctx.peer(source)
    for index in cutlass.range(warp, pairs, COMMUNICATION_WARPS, unroll=1):
        pair = load_u32(ctx.at_peer(peer, "send_pairs", ctx.args.rank, first + index))
        fetch_token(ctx, peer, pair, warp, uses)
        uses = uses + 1
    return uses


@cute.jit
def fetch_token(ctx: EpContext, peer: Int64, pair: Int32, warp: Int32, uses: Int32):
    """Moves one token: TMA copies its row through SMEM, while the lanes copy its scales."""
    config, problem, lane = ctx.config, ctx.config.problem, cute.arch.lane_idx()
    token = div(pair, problem.topk)
    x = ctx.at_peer(peer, "x", token)
    load_chunk(ctx, x, warp, 0, config.smem.pull_slots)
    words = problem.hidden // CHANNELS_PER_WORD
    scale_words = [minimum(lane + first, words - 1) for first in range(0, words, 32)]
    source_scales = ctx.at_peer(peer, "x_sf", token)
    # All remote loads are issued before the first is used, so that their latencies overlap.
    scales = [load_u32(source_scales + Int64(word) * 4) for word in scale_words]
    places = places_of(ctx, peer, token, pair - token * problem.topk)
    mask = places.mask
    while mask != 0:
        row = shuffle(places.rows, lowest_bit(mask))
        for i, word in enumerate(scale_words):
            if lane + 32 * i < words:
                store_u32(ctx.at("fc1_sf", word, row), scales[i])
        mask = mask & (mask - 1)
    sync_warp()
    # Each lane that has a place stores the row there, and says so.
    destination, here = ctx.at("fc1_acts", places.rows), places.rows >= 0
    stores = select(here, Int32(0), Int32(1))
    move_row(ctx, x, lambda offset, place, num_bytes: store_bytes(destination + offset, place, num_bytes), warp, stores, uses)
    if here:
        wait_group(0)
        reduce_add_u32(ctx.at("arrivals", ctx.epoch & 1, div(places.rows, config.block_m)), 1, "release", "gpu")
    sync_warp()


@cute.jit
def places_of(ctx: EpContext, peer: Int64, token: Int32, slot: Int32) -> Places:
    """The rows of a token's experts on this rank; without token saving, of the pair's slot alone."""
    problem, lane = ctx.config.problem, cute.arch.lane_idx()
    row = Int32(NOWHERE)
    if lane < problem.topk:
        expert = Int32(load_u64(ctx.at_peer(peer, "topk_idx", token, lane)))
        to = load_u32(ctx.at_peer(peer, "pair_rows", token, lane))
        here = (to >= 0) & (div(expert, problem.experts_per_rank) == ctx.args.rank)
        if cutlass.const_expr(not ctx.config.token_saving):
            here = here & (lane == slot)
        row = select(here, to, Int32(NOWHERE))
    return Places(row, ballot(Int32(row >= 0)))

"""The communication warps of combine: on every token's rank the sum of its results, each times its top-k weight.

waits     RESULTS: all tiles of all ranks are done; combine, per piece
signals   READ, when nothing of other ranks is read any more, and no result of this launch is needed

A task, of one warp, is some of this rank's tokens.  A warp handles one piece of a token at a time: TMA fetches its top-k results, from the
ranks that have computed them or from where these have put them (scatter.py), into one set of SMEM slots, while the warp sums the piece
before it from the other set, in FP32, in ascending slot order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....blocks.rank_barrier import Group, arrive, await_ranks, collect, signal
from ....device.mbarrier import arrive_expect
from ....device.memory import fence_async_global, load_f32, load_u32, load_u64
from ....device.ring import Ring
from ....device.stamps import begin, stamp
from ....device.tma import load_bytes, wait_group, wait_group_read
from ....device.warp import ballot, popc, sync_warp
from ....layouts.arith import ceil_div, div, minimum
from ....layouts.records import Activity, Role
from ..combine import combine_pieces
from .context import EpContext
from .layouts.symmetric import EpBarrier
from .scatter import send_results
from .scheduler import end_launch, next_task


@dataclass(frozen=True)
class WeightedPiece:
    """Piece `index`, counted over all tokens of the rank; lane s has the weight of slot s, which bit s of `mask` says is in use."""

    index: Int32
    mask: Int32
    weight: Float32


def count_tasks(ctx: EpContext) -> Any:
    return ceil_div(ctx.args.num_tokens, ctx.config.task_tokens)


@cute.jit
def tiles_done(ctx: EpContext, group: Group):
    """The math warps of a CTA, after their last tile: it is in memory, on SM90 when TMA has stored it."""
    if cutlass.const_expr(not ctx.config.arch.has_tensor_memory):
        if cute.arch.lane_idx() == 0:
            wait_group(0)
        sync_warp()
        stamp(ctx, Activity.WAIT_STORE, int(ctx.config.launch))
    arrive(ctx, group, EpBarrier.RESULTS)


@cute.jit
def combine(ctx: EpContext, group: Group):
    """All communication warps of a CTA."""
    begin(ctx, Role.COMBINE)
    sending = Int32(0)
    if cutlass.const_expr(ctx.config.serial):
        sending, following = send_results(ctx, group)
        arrive(ctx, group, EpBarrier.RESULTS)
    if ctx.sm == 0:
        collect(ctx, group, EpBarrier.RESULTS, ctx.epoch + 1)
        signal(ctx, group, EpBarrier.RESULTS)
    await_ranks(ctx, group, EpBarrier.RESULTS, ctx.epoch + 1)
    # Part of the rows have been written through the generic proxy.
    fence_async_global()
    plan, tokens = ctx.config.smem.combine, ctx.config.task_tokens
    warp, lane, total = group.thread >> 5, cute.arch.lane_idx(), count_tasks(ctx)
    loads, task = Ring.start(plan.sets), following - sending if ctx.config.serial else next_task(ctx)
    stamp(ctx, Activity.WAIT_RANKS)
    while task < total:
        first = task * tokens
        end = minimum(ctx.args.num_tokens, first + tokens) * plan.pieces
        loads = combine_pieces(ctx, warp, lane, first * plan.pieces, end, loads, 1, start_loads, lambda ctx, lane, piece: piece.weight)
        stamp(ctx, Activity.COMBINE, task)
        task = next_task(ctx)
        if cutlass.const_expr(ctx.config.serial):
            task = task - sending
    if lane == 0:
        wait_group_read(0)
    sync_warp()
    end_launch(ctx, group)
    stamp(ctx, Activity.WAIT_RANKS)


@cute.jit
def start_loads(ctx: EpContext, warp: Int32, lane: Int32, index: Int32, end: Int32, loads: Ring) -> WeightedPiece:
    """Starts the loads of a piece, if there is one, into the ring's set: each lane that has a slot of the token loads its result."""
    problem, plan = ctx.config.problem, ctx.config.smem.combine
    mask, weight = Int32(0), Float32(0.0)
    if index < end:
        token = div(index, plan.pieces)
        row, expert = Int32(-1), Int32(0)
        if lane < problem.topk:
            expert = Int32(load_u64(ctx.at("topk_idx", token, lane)))
            row = load_u32(ctx.at("pair_rows", token, lane))
            weight = load_f32(ctx.at("topk_weights", token, lane))
        mask = ballot(Int32(row >= 0))
        barrier = ctx.barrier("combine", warp * plan.sets + loads.index)
        if lane == 0:
            arrive_expect(barrier, popc(mask) * plan.slot_bytes)
        sync_warp()
        if row >= 0:
            start = Int64(index - token * plan.pieces) * plan.part_bytes
            place = ctx.shared("combine_slots", warp, loads.index * problem.topk + lane)
            load_bytes(place, result_of(ctx, token, expert, row) + start, plan.part_bytes, barrier)
        sync_warp()
    return WeightedPiece(index, mask, weight)


def result_of(ctx: EpContext, token: Int32, expert: Int32, row: Int32) -> Any:
    """Address of the result of the lane's slot of a token, whose expert has it in this row."""
    if ctx.config.scatter:
        return ctx.at("results", token * ctx.config.problem.topk + cute.arch.lane_idx())
    return ctx.at_peer(ctx.peer(div(expert, ctx.config.problem.experts_per_rank)), "kept", row)

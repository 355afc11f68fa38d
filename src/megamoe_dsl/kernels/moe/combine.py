"""Combine: the sum of a token's top-k results, on the rank that the token came from (article 4.5.6).

waits     combine barriers of the warp, per piece   (the rank barrier BEFORE_COMBINE has passed)
A warp handles one piece of a token at a time.  TMA loads all top-k results of the piece into one set of SMEM slots, while the warp sums
the piece before it from the other set: in FP32, in registers, in ascending slot order.  The sum is rounded to BF16 once, and TMA stores it.
Consecutive pieces go to different CTAs, so that all CTAs have work even when there are few tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...blocks.rank_barrier import Group, rank_barrier
from ...device.cast import pack_bf16
from ...device.mbarrier import arrive_expect, wait
from ...device.memory import fence_async_global, fence_async_shared, load_f32, store_shared_v4
from ...device.ring import Ring
from ...device.stamps import stamp
from ...device.tma import commit_group, load_bytes, store_bytes, wait_group_read
from ...device.warp import ballot, elect, lowest_bit, named_barrier, popc, shuffle_f32, sync_warp
from ...layouts.arith import div
from ...layouts.records import Activity
from .context import Context
from .dispatch import expert_of
from .layouts.smem_plan import VECTOR, Y_BYTES, CombinePlan, NamedBarrier, RankBarrier, vector_address


@dataclass(frozen=True)
class Piece:
    """Piece `index`, counted over all tokens of the rank; bit s of `mask` says whether top-k slot s of its token is in use."""

    index: Int32
    mask: Int32


@dataclass(frozen=True)
class Sums:
    """FP32 sums of a lane: channels [256 j + 8 lane, + 8) of the piece for each vector j.  `mask` has the slots that are still to be added,
    `slot` is the lowest of them."""

    values: tuple[Float32, ...]
    mask: Int32
    slot: Int32


@cute.jit
def combine_after_tiles(ctx: Context, thread: Int32, warp: Int32, lane: Int32):
    """Epilogue warps, when their tiles are done: waits for all ranks, then combines; `thread` counts within these warps."""
    # After the rank barrier the counts may be cleared, so this CTA's scheduler warp must have read them.  That the tiles are done does not
    # say so: in a cluster they may come from the scheduler warp of the other CTA.
    wait(ctx.barrier("counts"), Int32(0))
    rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, 32 * ctx.config.epilogue_warps, thread), RankBarrier.BEFORE_COMBINE)
    stamp(ctx, Activity.WAIT_RANKS)
    # As in `dispatch`: combine's TMA loads overwrite SMEM that these warps have written through the generic proxy.
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, ctx.config.dispatch_epilogue_threads)
    stamp(ctx, Activity.WAIT_RESULTS)
    combine_tokens(ctx, warp, lane)
    stamp(ctx, Activity.COMBINE)


@cute.jit
def combine_tokens(ctx: Context, warp: Int32, lane: Int32):
    """Sums the pieces of y that one epilogue warp has."""
    config, plan = ctx.config, ctx.config.smem.combine
    # Other ranks wrote the rows through the generic proxy.
    fence_async_global()
    total, step = ctx.args.num_tokens * plan.pieces, config.num_sms * plan.warps
    combine_pieces(ctx, warp, lane, ctx.sm + warp * config.num_sms, total, Ring.start(plan.sets), step, start_loads, slot_weight)
    if lane == 0:
        wait_group_read(0)
    sync_warp()


@cute.jit
def combine_pieces(
    ctx: Any,
    warp: Int32,
    lane: Int32,
    first: Int32,
    end: Int32,
    loads: Ring,
    step: cutlass.Constexpr[int],
    start_loads: cutlass.Constexpr[Callable[..., Any]],
    weight_of: cutlass.Constexpr[Callable[..., Any]],
):
    """Every `step`-th piece from `first` to `end - 1`; `loads` is the set of the warp's next load, which is returned."""
    plan, sums = ctx.config.smem.combine, loads
    piece = start_loads(ctx, warp, lane, first, end, loads)
    while piece.index < end:
        loads = loads.next()
        following = dataclasses.replace(piece, index=piece.index + step)
        if cutlass.const_expr(plan.sets > 1):
            following = start_loads(ctx, warp, lane, piece.index + step, end, loads)
        weight = weight_of(ctx, lane, piece)
        wait(ctx.barrier("combine", warp * plan.sets + sums.index), sums.phase)
        finish_piece(ctx, warp, lane, piece, sums.index, weight)
        sums = sums.next()
        if cutlass.const_expr(plan.sets == 1):
            following = start_loads(ctx, warp, lane, piece.index + step, end, loads)
        piece = following
    return loads


@cute.jit
def start_loads(ctx: Context, warp: Int32, lane: Int32, index: Int32, total: Int32, loads: Ring) -> Piece:
    """Starts the loads of a piece, if there is one, into the ring's set."""
    problem, plan = ctx.config.problem, ctx.config.smem.combine
    mask = Int32(0)
    if index < total:
        token = div(index, plan.pieces)
        chosen = Int32(0)
        if lane < problem.topk:
            chosen = Int32(expert_of(ctx, token, lane) >= 0)
        mask = ballot(chosen)
        barrier = ctx.barrier("combine", warp * plan.sets + loads.index)
        if elect():
            num_bytes = plan.row.value_bytes * channels_of(plan, index)
            arrive_expect(barrier, popc(mask) * (num_bytes + plan.row.scale_bytes))
            start = Int64(index - token * plan.pieces) * plan.part_bytes
            for slot in cutlass.range_constexpr(problem.topk):
                if (mask & (1 << slot)) != 0:
                    row = ctx.at("combine", slot, token)
                    source = row + start
                    place = ctx.shared("combine_slots", warp, loads.index * problem.topk + slot)
                    load_bytes(place, source, num_bytes, barrier)
                    if cutlass.const_expr(plan.row.scaled):
                        load_bytes(place + plan.part_bytes, row + plan.row.first_scale, plan.row.scale_bytes, barrier)
        sync_warp()
    return Piece(index, mask)


@cute.jit
def slot_weight(ctx: Context, lane: Int32, piece: Piece):
    """The top-k weight of the lane's slot; 1 where results have been weighed.  Loaded before the wait for the piece."""
    problem = ctx.config.problem
    weight = Float32(1.0)
    if cutlass.const_expr(problem.weigh_results):
        if lane < problem.topk:
            weight = load_f32(ctx.at("topk_weights", div(piece.index, ctx.config.smem.combine.pieces), lane))
    return weight


def add_next(ctx: Context, sums: Sums, slots: Any, lane: Any, channels: Any, first_scale: Any, weight: Any) -> Sums:
    """The sums with the lowest slot of the mask added; `slots` is the address of the set's first slot, `channels` those of the piece,
    `first_scale` the byte of a slot that the piece's scales begin with, and `weight` that of the lane's slot."""
    values: list[Any] = []
    plan = ctx.config.smem.combine
    source = slots + sums.slot * plan.slot_bytes
    factor = shuffle_f32(weight, sums.slot) if ctx.weighs_results else None
    for j in range(len(sums.values) // VECTOR):
        place, vector = plan.place(lane, j, channels)
        values += ctx.results.add(sums.values[j * VECTOR : (j + 1) * VECTOR], source, place, vector, first_scale, factor)
    mask = sums.mask & (sums.mask - 1)
    return Sums(tuple(values), mask, lowest_bit(mask))


def part_of(plan: CombinePlan, index: Any) -> Any:
    return index - div(index, plan.pieces) * plan.pieces


def scales_of(plan: CombinePlan, piece: Piece) -> Any:
    """Byte of a slot that a piece's scales begin with; 0 where results have none."""
    if not plan.row.scaled:
        return 0
    return plan.part_bytes + part_of(plan, piece.index) * (plan.chunk // plan.row.format.channels)


def channels_of(plan: CombinePlan, index: Any) -> Any:
    return plan.chunk if plan.last_chunk == plan.chunk else plan.channels(part_of(plan, index))


def piece_address(y: Any, index: Any, num_bytes: int) -> Any:
    """Address of a piece in y, which may have more than 2^31 bytes; all pieces have `num_bytes`."""
    return y + Int64(index) * num_bytes


def place_in_y(plan: CombinePlan, y: Any, index: Any) -> Any:
    """Address of a piece of any token."""
    if plan.last_chunk == plan.chunk:
        return piece_address(y, index, plan.chunk_bytes)
    return piece_address(y, div(index, plan.pieces), Y_BYTES * plan.row.hidden) + part_of(plan, index) * plan.chunk_bytes


@cute.jit
def finish_piece(ctx: Context, warp: Int32, lane: Int32, piece: Piece, load_set: Int32, weight: Float32):
    """Sums a loaded piece and stores it."""
    problem, plan = ctx.config.problem, ctx.config.smem.combine
    slots = ctx.shared("combine_slots", warp, load_set * problem.topk)
    sums = Sums(tuple(Float32(0.0) for _ in range(plan.chunk // 32)), piece.mask, lowest_bit(piece.mask))
    channels, first_scale = channels_of(plan, piece.index), scales_of(plan, piece)
    while sums.mask != 0:
        sums = add_next(ctx, sums, slots, lane, channels, first_scale, weight)
    store_sum(ctx, warp, lane, piece.index, sums.values)


@cute.jit
def store_sum(ctx: Context, warp: Int32, lane: Int32, index: Int32, v: Any):
    """A lane's sums of piece `index` to y, as BF16, by way of the warp's slot for them."""
    problem, plan = ctx.config.problem, ctx.config.smem.combine
    out = ctx.shared("combine_slots", warp, plan.sets * problem.topk)
    if lane == 0:
        wait_group_read(0)
    # Two things are ordered here: the store before has read `out`, which is written next; and every lane has read the slots that the next
    # loads overwrite.
    sync_warp()
    for j in cutlass.range_constexpr(len(v) // VECTOR):
        words = tuple(pack_bf16(v[j * VECTOR + 2 * i], v[j * VECTOR + 2 * i + 1]) for i in range(4))
        store_shared_v4(vector_address(out, lane, j), words)
    fence_async_shared()  # TMA reads `out` through the async proxy
    sync_warp()
    if lane == 0:
        store_bytes(place_in_y(plan, ctx.args.y, index), out, Y_BYTES * channels_of(plan, index))
        commit_group()

"""Epilogue warps: every accumulator to its destination, then combine (article 4.5).

waits     work_tile_full and acc_full, per tile; Linear1 arrival count, per tile (acquires what dispatch wrote for the tile's tokens);
          counts, once
signals   work_tile_empty and acc_empty of the even CTA, per tile; of Linear1, fc2_arrival of the pool block: this CTA's 64 channels
          (release, after values and scales); of Linear2, nothing per tile: the rank barrier BEFORE_COMBINE covers all remote writes

Two warpgroups take alternate tiles, so each has one of the two accumulators to itself and they never wait for each other.

Linear1: SwiGLU times the top-k weight, with one scale per 32 channels, or 16, into the Linear2 pool (article 4.5.4); which channels a
thread has, how warps find scales and how outputs are rounded are blocks (blocks/sm100/outputs.py).  Linear2: rows of results
straight into the combine buffers of the tokens' ranks (article 4.5.5), by a block too (blocks/sm100/results.py).  Of every 8 tokens a
thread has two, and four weight rows: 8 k + lane / 4 of its warp's 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....blocks.rank_barrier import Group, rank_barrier
from ....blocks.sm100.epilogue_tile import fc1_scale
from ....blocks.sm100.outputs import GateUpFactors, activate_channels, finish_passes
from ....blocks.sm100.results import ResultPart, store_results
from ....device.mbarrier import LEADER, arrive_cluster, wait
from ....device.memory import fence_async_shared, load_f32, load_f32x2
from ....device.ring import Ring
from ....device.stamps import begin, detail_of, stamp
from ....device.tcgen05 import fence_after_sync, fence_before_sync
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....device.warp import named_barrier, store_where, sync_warp
from ....hardware.cta_pair import ACCUMULATORS, BLOCK_N, CLUSTER
from ....hardware.operand_tile import SF_ROW_BYTES, pool_sf_row
from ....layouts.arith import div
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import FC1
from ..combine import combine_tokens
from ..context import Context, WorkTile, next_tile
from ..layouts.smem_plan import NamedBarrier, RankBarrier
from ..pool import add_bias, bias_address, expert_factor, part_mark, signal_part, wait_tokens, weighs_bias, weights_of_pair


def load_biases(ctx: Context, tile: Any, phase: int, n_block: Any) -> tuple[Any, ...]:
    """Biases of the thread's weight rows among the CTA's 128; none in a layer without biases."""
    if not ctx.config.problem.biases:
        return ()
    address = bias_address(ctx, phase, tile.block.expert, n_block * BLOCK_N + tile.warp * 32 + (tile.lane >> 2))
    return tuple(load_f32(address + 32 * k) for k in range(4))


def with_bias(ctx: Context, phase: int, sums: Sequence[Any], biases: Sequence[Any], row: Any) -> tuple[Any, ...]:
    """The sums of 8 tokens, of which the thread's first has the pool row `row`."""
    if not biases:
        return tuple(sums)
    weights = load_f32x2(ctx.at("fc1_topk_weights", row)) if weighs_bias(ctx, phase) else (None, None)
    return tuple(add_bias(ctx, phase, sums[2 * k + q], biases[k], weights[q]) for k in range(4) for q in range(2))


@dataclass(frozen=True)
class PoolResults:
    """Results of the `valid` tokens from pool row `row` on; `biases` are of the thread's weight rows, if the layer has any,
    and `factor` of the expert's sums."""

    ctx: Context
    row: Int32
    valid: Int32
    biases: tuple[Float32, ...]
    factor: Any

    def finished(self, first: Any, sums: Sequence[Any]) -> Sequence[Any]:
        scaled = [value * self.factor for value in sums] if self.ctx.config.problem.formats.weights.factor else sums
        return with_bias(self.ctx, self.ctx.result_phase, scaled, self.biases, self.row + first)

    def begin(self, first: Any, own_row: Any) -> Any:
        return self.ctx.result_place(self.row + first + own_row)

    def addresses(self, begun: Any, steps: range) -> list[Any]:
        return self.ctx.result_rows(begun, steps)

    def has(self, row: Any) -> Any:
        return row < self.valid

    def send(self, place: Any, first: Any, lane: Any, words: Any) -> None:
        self.ctx.outputs.send(place, first, lane, words)

    @property
    def value_bytes(self) -> int:
        return self.ctx.outputs.row.value_bytes


def part_of(ctx: Context, tile: Any) -> ResultPart:
    """A tile as blocks know a warpgroup's part of it."""
    shape: Any = (tile.block.valid_m, tile.block.n_block * CLUSTER + ctx.cta_rank, ctx.config.store_block_m, NamedBarrier.EPILOGUE_GROUP)
    return ResultPart(tile.column, ctx.shared("cd", tile.group), tile.group, tile.warp, tile.lane, *shape)


@cute.jit
def finish_fc2(ctx: Context, tile):
    """One tile, `store_block_m` tokens at a time."""
    config, block, part = ctx.config, tile.block, part_of(ctx, tile)
    factor = expert_factor(ctx, block.expert, "fc2") if config.problem.formats.weights.factor else 1.0
    biases = load_biases(ctx, tile, ctx.result_phase, part.n_block)
    store_results(part, PoolResults(ctx, block.pool_block * config.block_m, block.valid_m, biases, factor))


@dataclass(frozen=True)
class PoolOutputs:
    """Outputs of Linear1 of a tile on their way into the Linear2 pool, through two buffers in turn; `factors` are of the expert's sums."""

    ctx: Context
    block: WorkTile
    part: ResultPart
    biases: tuple[Float32, ...]
    factors: Any

    @property
    def row(self) -> Any:
        return self.block.pool_block * self.ctx.config.block_m

    @property
    def leads(self) -> Any:
        """Whether this thread issues the warpgroup's stores."""
        return (self.part.warp == 0) & (self.part.lane == 0)

    def activated(self, first: Any, sums: Sequence[Sequence[Any]]) -> list[list[Any]]:
        ctx, row, found = self.ctx, self.row + first + (self.part.lane & 3) * 2, []
        weights = ctx.at("fc1_topk_weights", row)
        for g, one in enumerate(sums):
            v = with_bias(ctx, FC1, one if self.factors is None else self.factors.of_sums(one), self.biases, row + 8 * g)
            found.append(activate_channels(ctx, v, weights_of_pair(ctx, weights + g * 32)))
        return found

    def buffer(self, first: Any) -> Any:
        """The one that the store before the last one has read."""
        store_where(self.leads, partial(wait_group_read, 1))
        self.part.sync_group()
        return self.part.staging + (div(first, self.part.tokens) & 1) * self.ctx.config.fc1_tile_bytes

    def has(self, row: Any) -> Any:
        return True

    def scale(self, row: Any) -> tuple[Any, int]:
        config, part = self.ctx.config, self.part
        index = fc1_scale(part.n_block, part.warp, config.problem.formats.hidden.channels)
        place = self.ctx.at("fc2_sf", index >> 2, pool_sf_row(self.block.pool_block, row, config.sf_block_m))
        return place + Int64(index & 3), SF_ROW_BYTES

    def send(self, first: Any, buffer: Any) -> None:
        store_where(self.leads, partial(store_outputs, self.ctx, buffer, self.part.n_block, self.row + first))


def store_outputs(ctx: Context, buffer: Any, n_block: Any, row: Any) -> None:
    """A pass from its buffer to the pool, by TMA."""
    store_tile(ctx.map("fc1_output"), buffer, n_block * ctx.config.fc1_row_bytes, row)
    commit_group()


@cute.jit
def finish_fc1(ctx: Context, tile):
    """One tile, `store_block_m` tokens at a time."""
    block, hidden, part = tile.block, ctx.config.problem.formats.hidden, part_of(ctx, tile)
    factors: Any = GateUpFactors(*(expert_factor(ctx, block.expert, one) for one in ("gate", "up", "hidden"))) if hidden.factor else None
    rows = PoolOutputs(ctx, block, part, load_biases(ctx, tile, FC1, part.n_block), factors)
    maxima = [ctx.shared("amax", tile.group, warp, (tile.lane & 3) * 2) for warp in (tile.warp, tile.warp ^ 1)]
    finish_passes(part, rows, hidden, maxima, factors)
    if rows.leads:
        wait_group(0)
        signal_part(ctx, ctx.at("fc2_arrival", block.pool_block), part_mark(ctx, part.n_block))


@dataclass(frozen=True)
class Tile:
    """A tile as one epilogue warp sees it: its block, the accumulator's first TMEM column, warpgroup, warp within it, lane."""

    block: WorkTile
    column: Int32
    group: Int32
    warp: Int32
    lane: Int32


@cute.jit
def epilogue(ctx: Context, thread: Int32):
    """All epilogue warps; `thread` counts within them."""
    config = ctx.config
    begin(ctx, Role.EPILOGUE)
    finish_tiles(ctx, thread, finish_tile)

    # After the rank barrier the counts may be cleared, so this CTA's scheduler warp must have read them before.
    wait(ctx.barrier("counts"), Int32(0))
    rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, 32 * config.epilogue_warps, thread), RankBarrier.BEFORE_COMBINE)
    stamp(ctx, Activity.WAIT_RANKS)
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, config.dispatch_epilogue_threads)
    stamp(ctx, Activity.WAIT_RESULTS)
    combine_tokens(ctx, thread >> 5, thread & 31)
    stamp(ctx, Activity.COMBINE)


@cute.jit
def finish_tile(ctx: Context, tile: Tile):
    if tile.block.phase == FC1:
        finish_fc1(ctx, tile)
    else:
        finish_fc2(ctx, tile)


@cute.jit
def finish_tiles(ctx: Context, thread: Int32, finish: Callable[..., Any]):
    """All tiles of an epilogue warp, each given to `finish`."""
    config = ctx.config
    groups = config.epilogue_warpgroups
    group, warp, lane = thread >> 7, (thread >> 5) & 3, thread & 31
    block, tiles = next_tile(ctx.first_tile.alternate(group, groups))
    stamp(ctx, Activity.WAIT_COUNTS)
    acc = Ring(ACCUMULATORS // groups, Int32(0), Int32(0))
    while block.valid():
        if cutlass.const_expr(ctx.operands_arrive):
            wait_tokens(ctx, block)
        index = acc.index + group
        wait(ctx.barrier("acc_full", index), acc.phase)
        fence_after_sync()
        stamp(ctx, Activity.WAIT_STAGE, detail_of(block))
        finish(ctx, Tile(block, index * config.block_m, group, warp, lane))
        fence_before_sync()
        sync_warp()
        if lane == 0:
            arrive_cluster(ctx.barrier("acc_empty", index) & LEADER)
        stamp(ctx, Activity.EPILOGUE, detail_of(block))
        acc = acc.next()
        block, tiles = next_tile(tiles)

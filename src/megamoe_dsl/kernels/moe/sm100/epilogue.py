"""Epilogue warps: every accumulator to its destination, then combine (article 4.5).

waits     besides those of blocks/sm100/results.py: Linear1 arrival count, per tile (acquires what dispatch wrote for the tile's tokens);
          counts, once
signals   likewise: of Linear1, fc2_arrival of the pool block: this CTA's 64 channels (release, after values and scales); of Linear2,
          nothing per tile: the rank barrier BEFORE_COMBINE covers all remote writes

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

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....blocks.sm100 import results
from ....blocks.sm100.epilogue_tile import fc1_scale
from ....blocks.sm100.outputs import GateUpFactors, activate_channels, finish_passes
from ....blocks.sm100.results import EpilogueThread, ResultPart, store_results
from ....device.memory import load_f32, load_f32x2
from ....device.ring import Ring
from ....device.stamps import begin, stamp
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....device.warp import store_where
from ....hardware.cta_pair import ACCUMULATORS, BLOCK_N, CLUSTER
from ....hardware.operand_tile import SF_ROW_BYTES, pool_sf_row
from ....layouts.arith import div
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import FC1
from ..combine import combine_after_tiles
from ..context import Context, WorkTile, next_tile
from ..layouts.smem_plan import NamedBarrier
from ..pool import add_bias, bias_address, expert_factor, part_mark, signal_part, wait_tokens, weighs_bias, weights_of_pair


def load_biases(ctx: Context, tile: WorkTile, phase: int, part: ResultPart) -> tuple[Any, ...]:
    """Biases of the thread's weight rows among the CTA's 128; none in a layer without biases."""
    if not ctx.config.problem.biases:
        return ()
    address = bias_address(ctx, phase, tile.expert, part.n_block * BLOCK_N + part.warp * 32 + (part.lane >> 2))
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


def part_of(ctx: Context, tile: WorkTile, me: EpilogueThread, column: Any) -> ResultPart:
    """A tile as blocks know a warpgroup's part of it."""
    shape: Any = (tile.valid_m, tile.n_block * CLUSTER + ctx.cta_rank, ctx.config.store_block_m, NamedBarrier.EPILOGUE_GROUP)
    return ResultPart(me.group, me.warp, me.lane, column, ctx.shared("cd", me.group), *shape)


@cute.jit
def finish_fc2(ctx: Context, tile: WorkTile, me: EpilogueThread, column: Int32):
    """One tile, `store_block_m` tokens at a time."""
    config, part = ctx.config, part_of(ctx, tile, me, column)
    factor = expert_factor(ctx, tile.expert, "fc2") if config.problem.formats.weights.factor else 1.0
    biases = load_biases(ctx, tile, ctx.result_phase, part)
    store_results(part, PoolResults(ctx, tile.pool_block * config.block_m, tile.valid_m, biases, factor))


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
def finish_fc1(ctx: Context, tile: WorkTile, me: EpilogueThread, column: Int32):
    """One tile, `store_block_m` tokens at a time."""
    hidden, part = ctx.config.problem.formats.hidden, part_of(ctx, tile, me, column)
    factors: Any = GateUpFactors(*(expert_factor(ctx, tile.expert, one) for one in ("gate", "up", "hidden"))) if hidden.factor else None
    rows = PoolOutputs(ctx, tile, part, load_biases(ctx, tile, FC1, part), factors)
    maxima = [ctx.shared("amax", me.group, warp, (me.lane & 3) * 2) for warp in (me.warp, me.warp ^ 1)]
    finish_passes(part, rows, hidden, maxima, factors)
    if rows.leads:
        wait_group(0)
        signal_part(ctx, ctx.at("fc2_arrival", tile.pool_block), part_mark(ctx, part.n_block))


@cute.jit
def epilogue(ctx: Context, thread: Int32):
    """All epilogue warps; `thread` counts within them."""
    begin(ctx, Role.EPILOGUE)
    finish_tiles(ctx, thread, finish_tile)
    combine_after_tiles(ctx, thread, thread >> 5, thread & 31)


@cute.jit
def finish_tile(ctx: Context, tile: WorkTile, me: EpilogueThread, column: Int32):
    if tile.phase == FC1:
        finish_fc1(ctx, tile, me, column)
    else:
        finish_fc2(ctx, tile, me, column)


def finish_tiles(ctx: Context, thread: Any, finish: Callable[..., Any]) -> None:
    """All tiles of an epilogue warp, each given to `finish`; several warpgroups take alternate tiles and accumulators."""
    me, groups = EpilogueThread.of(thread), ctx.config.epilogue_warpgroups
    tile, tiles = next_tile(ctx.first_tile.alternate(me.group, groups))
    stamp(ctx, Activity.WAIT_COUNTS)
    waits = wait_tokens if ctx.operands_arrive else None
    results.finish_tiles(ctx, tile, tiles, me, Ring.start(ACCUMULATORS // groups), me.group, finish, waits)

"""The loaders: one warp takes tiles and loads their weights, others load rows, quantized on the way where weights are E4M3.

load_weights   waits work_tile_empty per tile; empty per stage
               signals work_tile_full per tile; full per stage, with the bytes of the weights
load_rows      waits work_tile_full per tile, for Linear2 the words of `h`; empty per own stage
               signals work_tile_empty per tile; full per own stage

Tiles are taken from a counter, so that whoever waits for a tile of Linear1 waits for a CTA that runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from ...blocks.gemm.load import packed_lines
from ...blocks.gemm.tile import GROUP_ROWS
from ...blocks.gemm.weights import RUN
from ...blocks.quantize import quantize, quantize_values
from ...blocks.sm90 import load
from ...blocks.sm90.load import Fetch, WeightTile
from ...device.cast import f32_of_bits
from ...device.mbarrier import arrive
from ...device.memory import (
    VECTOR,
    atomic_add_u32,
    fence_async_shared,
    load_relaxed_v4,
    load_shared_u32,
    load_v4,
    reduce_add_u32,
    store_shared_f32,
    store_shared_v2,
    store_shared_v4,
)
from ...device.ring import Ring, Stage, publish
from ...device.tma import load_tile_cta
from ...device.warp import shuffle, sleep, sync_warp
from ...hardware.operand_tile import ROW_BYTES
from ...layouts.arith import div, select
from ...recipe import Recipe
from .config import GROUPS
from .context import LAST, DecodeContext, DecodeTile, GroupStage, any_absent, next_tile
from .problem import FC1, FC2

AT_ONCE = 4  # parts of rows that a lane has on their way from memory
POLL_NS = 100  # between two looks at results that are not there yet, which every CTA waits for
NUMBER, REGION = 0x7FFFFFFF, -0x80000000  # bits of the counter of tiles
TILE_BYTES, HALF_RUNS = GROUP_ROWS * ROW_BYTES, GROUP_ROWS // (4 * RUN)
"""Of a tile of weights as they are: bytes of a K block, and runs of gate in half of it."""


@cute.jit
def claim(ctx: DecodeContext) -> Int32:
    """Lane 0: the next tile's number, which may still be on its way; its highest bit says in which region this launch counts."""
    number = Int32(0)
    if cute.arch.lane_idx() == 0:
        number = atomic_add_u32(ctx.args.memory, 1)
    return number


@dataclass(frozen=True)
class GateUpRuns(Fetch):
    """Runs of gate and up of an expert: a box from run `y` on, and one `apart` runs further: 0 for half of a tile, which is there twice."""

    expert: Int32
    apart: Int32

    boxes: ClassVar[int] = 2

    def load_box(self, box: int, destination: Any, full: Any, x: Any, y: Any) -> None:
        load_tile_cta(destination + box * (TILE_BYTES // 2), self.map, full, x, 0, 0, y + box * self.apart, self.expert)


def plain_rows(ctx: DecodeContext, phase: int, expert: Any, n_block: Any, part: Any) -> WeightTile:
    """Rows as they are; `part` of Linear1: the whole tile (0), its first half (1) or its second (2)."""
    if phase == FC1:
        first, apart = select(part == 2, Int32(HALF_RUNS), Int32(0)), select(part == 0, Int32(HALF_RUNS), Int32(0))
        fetch = GateUpRuns(ctx.maps.fc1_weights, Int32(0), Int32(1), False, expert, apart)
        return WeightTile(fetch, n_block * (2 * HALF_RUNS) + first, 0, TILE_BYTES)
    return WeightTile(Fetch.alone(ctx.maps.fc2_weights), expert * ctx.config.problem.n(FC2) + n_block * GROUP_ROWS, 0, TILE_BYTES)


def rows_of(ctx: DecodeContext, phase: int, expert: Any, n_block: Any, part: Any) -> WeightTile:
    """A tile's weight rows, as they are or packed."""
    source, maps, k_blocks = ctx.config.source, ctx.maps, ctx.config.k_blocks(phase)
    if source.part is None:
        return plain_rows(ctx, phase, expert, n_block, part)
    packed = (maps.fc1_codes, maps.fc1_records) if phase == FC1 else (maps.fc2_codes, maps.fc2_records)
    return packed_lines(source.part, packed, expert * source.lines(ctx.config, phase), n_block, k_blocks)


@dataclass(frozen=True)
class TileOrder:
    """Tiles, and their numbers: all of Linear1 come first, an expert's one after another; its last `halved` ones have two numbers each."""

    whole: Int32
    halved: Int32
    fc2: Int32

    @staticmethod
    def of(ctx: DecodeContext, blocks: Any) -> TileOrder:
        """For so many tiles of rows.  Where the last tiles of Linear1 are too few for all CTAs, halves are more even."""
        fc1, sms = blocks * ctx.config.n_blocks(FC1), ctx.config.num_sms
        last = fc1 - div(fc1, sms) * sms if ctx.config.source.part is None else Int32(0)
        halved = select(2 * last <= sms, last, Int32(0))
        return TileOrder(fc1 - halved, halved, blocks * ctx.config.n_blocks(FC2))

    @property
    def total(self) -> Any:
        return self.whole + 2 * self.halved + self.fc2

    def place(self, ctx: DecodeContext, number: Any) -> tuple[Any, ...]:
        """Linear, part, block of rows and n_block of the tile with this number."""
        fc1, fc2, behind = ctx.config.n_blocks(FC1), ctx.config.n_blocks(FC2), number - self.whole
        is_fc2, is_half = behind >= 2 * self.halved, (behind >= 0) & (behind < 2 * self.halved)
        within = select(is_fc2, behind - 2 * self.halved, select(is_half, self.whole + (behind >> 1), number))
        block = select(is_fc2, div(within, fc2), div(within, fc1))
        part = select(is_half, (behind & 1) + 1, Int32(0))
        return select(is_fc2, Int32(FC2), Int32(FC1)), part, block, within - block * select(is_fc2, Int32(fc2), Int32(fc1))


@dataclass(frozen=True)
class Turns:
    """For the weight loader, which takes tiles of all warpgroups in turn: the next stage of the tile's ring, and where each ring is."""

    stage: GroupStage
    index: tuple[Int32, ...]
    phase: tuple[Int32, ...]

    def after(self, stage: GroupStage) -> Turns:
        """At the next warpgroup's tile, where this one's has ended before `stage`."""
        mine = stage.group
        index = tuple(select(mine == group, stage.ring.index, old) for group, old in enumerate(self.index))
        phase = tuple(select(mine == group, stage.ring.phase, old) for group, old in enumerate(self.phase))
        following = select(mine == GROUPS - 1, Int32(0), mine + 1)
        ring = Ring(stage.ring.depth, index[0], phase[0])
        for group in range(1, GROUPS):
            own = following == group
            ring = Ring(ring.depth, select(own, index[group], ring.index), select(own, phase[group], ring.phase))
        return Turns(replace(stage, ring=ring, group=following), index, phase)


@cute.jit
def load_weights(ctx: DecodeContext, claimed: Int32, blocks: Int32):
    """Takes and publishes tiles, and loads their weights; `claimed` is the first number, `blocks` the tiles of rows."""
    config = ctx.config
    number, order = claimed & NUMBER, TileOrder.of(ctx, blocks)
    total = order.total
    queue, turns = ctx.first_tile, Turns(ctx.first_stage(0), (Int32(0),) * GROUPS, (Int32(0),) * GROUPS)
    while number < total:
        following = claim(ctx)
        phase, part, block, n_block = order.place(ctx, number)
        expert, count = load_shared_u32(ctx.shared("experts", block)), load_shared_u32(ctx.shared("counts", block))
        queue.wait_empty()
        publish(queue, lambda cta, words=(block * 8 + part * 2 + phase, n_block, expert, count): words)
        queue, stage = queue.next(), turns.stage
        if phase == FC1:
            stage = load.load_weights(stage, rows_of(ctx, FC1, expert, n_block, part), Int32(config.k_blocks(FC1)), 0, config.burst)
        if phase == FC2:
            stage = load.load_weights(stage, rows_of(ctx, FC2, expert, n_block, part), Int32(config.k_blocks(FC2)), 0, config.burst)
        turns, number = turns.after(stage), shuffle(following, 0) & NUMBER
    # Every CTA takes one number past the last tile.  Who gets the highest sets the counter back, and turns its highest bit over.
    if number == total + (config.num_sms - 1):
        if cute.arch.lane_idx() == 0:
            reduce_add_u32(ctx.args.memory, REGION - (total + config.num_sms), "relaxed", "gpu")
    for _ in cutlass.range_constexpr(GROUPS):
        queue.wait_empty()
        publish(queue, lambda cta: (Int32(0), Int32(LAST), Int32(0), Int32(0)))
        queue = queue.next()


@cute.jit
def load_rows(ctx: DecodeContext, number: Int32):
    """The warp with this number of those that load rows has every `row_warps`-th stage of a warpgroup's ring."""
    warps = ctx.config.source.row_warps
    group, own = number // warps, number % warps
    tile, tiles = next_tile(ctx.first_tile.alternate(group, GROUPS))
    stage = ctx.first_stage(group)
    while tile.valid():
        if tile.phase == FC1:
            stage = fill_rows(ctx, tile, stage, own, FC1)
        if tile.phase == FC2:
            stage = fill_rows(ctx, tile, stage, own, FC2)
        tile, tiles = next_tile(tiles)


def source_of(ctx: DecodeContext, tile: DecodeTile, row: Any, phase: int) -> Int64:
    """Address of a row of a tile: a token's, or a slot's."""
    problem, slot = ctx.config.problem, ctx.slot(tile, cutlass.min(row, tile.count - 1))
    if phase == FC1:
        return ctx.args.x + Int64(div(slot, problem.topk)) * (2 * problem.hidden)
    return ctx.result("h", slot)


@cute.jit
def fill_rows(ctx: DecodeContext, tile: DecodeTile, stage: Stage, number: Int32, phase: cutlass.Constexpr[int]):
    """A warp's stages of a tile; rows that the tile does not have keep what is there.  Returns the ring's stage after the tile."""
    config, lane, scaled = ctx.config, cute.arch.lane_idx(), ctx.config.problem.formats.scaled
    lanes = 16 if scaled else 8  # of a row
    row, part, step = lane // lanes, lane % lanes, 32 // lanes
    firsts = list(range(0, config.block_m, step))
    num_bytes = 2 * VECTOR if scaled and phase == FC2 else VECTOR
    sources = [source_of(ctx, tile, row + first, phase) + part * num_bytes for first in firsts]
    for k in cutlass.range(config.k_blocks(phase), unroll=1):
        if stage.ring.index % config.source.row_warps == number:
            there = bytes_there(ctx, k, part, phase)
            for start in cutlass.range_constexpr(0, len(firsts), AT_ONCE):
                some = range(start, min(start + AT_ONCE, len(firsts)))
                places = [(sources[i] + k * (lanes * num_bytes), (firsts[i] < tile.count) & there) for i in some]
                loaded = load_parts(places, num_bytes, phase)
                if cutlass.const_expr(start == 0):
                    stage.wait_empty()
                for i, words in zip(some, loaded, strict=True):
                    if firsts[i] < tile.count:
                        store_part(stage, row + firsts[i], part, words, ctx.config.problem.formats, phase)
            fence_async_shared()
            sync_warp()
            if lane == 0:
                arrive(stage.full)
        stage = stage.next()
    return stage


def bytes_there(ctx: DecodeContext, k: Any, part: Any, phase: int) -> Any:
    """Whether a row has a lane's part of K block k: the last block may be partial."""
    width = ctx.config.problem.formats.activations.row_bytes(ctx.config.problem.k(phase))
    return k * ROW_BYTES + part * VECTOR < width if width % ROW_BYTES else True


@cute.jit
def load_parts(places: Any, num_bytes: cutlass.Constexpr[int], phase: cutlass.Constexpr[int]):
    """Loads 16 or 32 bytes from each address, or zeros where nothing is there. The whole warp waits for results of Linear1."""
    load = load_v4 if phase == FC1 else load_relaxed_v4
    loaded = tuple(load_part(*place, num_bytes, load) for place in places)
    if cutlass.const_expr(phase == FC2):
        while any_absent([word for words in loaded for word in words]):
            sleep(POLL_NS)
            loaded = tuple(load_part(*place, num_bytes, load) for place in places)
    return loaded


@cute.jit
def load_part(address: Int64, there: cutlass.Boolean, num_bytes: cutlass.Constexpr[int], load: cutlass.Constexpr[Any]):
    """16 or 32 bytes, or zeros."""
    words = (Uint32(0),) * (num_bytes // 4)
    if there:
        words = tuple(word for first in range(0, num_bytes, VECTOR) for word in load(address + first))
    return words


@cute.jit
def store_part(stage: Stage, row: Int32, part: Int32, words: Any, formats: cutlass.Constexpr[Recipe], phase: cutlass.Constexpr[int]):
    """A lane's part of a row to the swizzled tile, and the row's scale."""
    place = stage.shared("tokens") + row * ROW_BYTES
    if cutlass.const_expr(not formats.scaled):
        store_shared_v4(place + ((part ^ (row & 7)) << 4), tuple(words))
    else:
        if cutlass.const_expr(phase == FC1):
            (low, high), scale = quantize(formats.activations, words)
        else:
            (low, high), scale = quantize_values(formats.hidden, [f32_of_bits(word) for word in words])
        store_shared_v2(place + (((part >> 1) ^ (row & 7)) << 4) + (part & 1) * 8, low, high)
        if part == 0:
            store_shared_f32(stage.token_scales + row * 4, Float32(scale))

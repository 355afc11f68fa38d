"""The loops of the warps of SM90 that fill stages: loaders, and warps that decode E2M1 weights once for all tokens of a tile.

Loaders load token tiles with their scales, and weight tiles, stage by stage (article 4.2, 4.3): they wait for empty and signal full, with
the bytes that TMA brings.  CTAs of a cluster may fetch together what they share: each fetches a part for all of them.  The whole warp runs
the loop, and one lane is elected only where instructions are issued.

Decode warps turn packed tiles (hardware/packed_tile.py) into E4M3 under SW128, as a main loop with tokens as rows reads them
(packed_share.py):

waits     codes_full and empty, per stage
signals   full and codes_empty, per warp and stage; the other CTA's full, in bytes

CTAs of a cluster that have one tile of weights for different tokens each decode a half of it and copy that to the other.  A warp has 16
rows of every 64.  `ldmatrix` gives each thread all 32 values of one of them that share a shift: the table's entry is made once for eight
words of E4M3, which are twice 16 bytes of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32

from ...device.e2m1 import decode, entry_by_table, normal_entry, shifts_of_pair
from ...device.mbarrier import arrive, arrive_expect
from ...device.memory import fence_async_shared, load_four, load_shared_u32, load_shared_v2, store_shared_u32, store_shared_v4
from ...device.ring import Stage, release_stage
from ...device.tma import copy_to_cta, load_tile_cta
from ...device.warp import ClusterPlace, ballot, elect, in_cta, sync_warp
from ...hardware.operand_tile import ROW_BYTES
from ...hardware.packed_tile import (
    EXPONENTS_OFFSET,
    GROUP,
    HALF_BYTES,
    RECORD_BYTES,
    SCALE_OFFSET,
    TILE_BYTES,
    TILE_LINES,
    TINY_BITS,
    WHOLE_TILE,
    PackedPart,
    record_index,
    unit_of,
)
from ...layouts.arith import select
from .share import CHUNK_ROWS, MathThread


@dataclass(frozen=True)
class OperandMaps:
    """Two tensor maps of an operand: the box of `part` has `part_rows` of the tile's rows, that of `whole` has all of them."""

    part: Int64
    whole: Int64
    part_rows: cutlass.Constexpr[int]


@dataclass(frozen=True)
class Fetch:
    """How a tile's operand is fetched: with the tensor map `map`, from row `first` of each K block on, into the CTAs of the mask `ctas`."""

    map: Int64
    first: Int32
    ctas: Int32
    multicast: cutlass.Constexpr[bool]

    boxes: ClassVar[int] = 1

    @staticmethod
    def alone(tensor_map: Any) -> Fetch:
        return Fetch(tensor_map, Int32(0), Int32(1), False)

    @staticmethod
    def of(maps: OperandMaps, place: ClusterPlace, half: Any, shared: Any) -> Fetch:
        """If the operand is `shared` by the CTAs of the cluster, this CTA fetches its part for all of them.  Else it fetches for itself:
        all rows, or the first part of a `half` tile."""
        if place.size == 1:
            return Fetch.alone(select(half, maps.part, maps.whole))
        return Fetch(
            select(shared | half, maps.part, maps.whole),
            select(shared, place.rank * maps.part_rows, Int32(0)),
            select(shared, Int32((1 << place.size) - 1), Int32(1) << place.rank),
            True,
        )

    def load(self, destination: Any, full: Any, x: Any, y: Any) -> None:
        for box in range(self.boxes):
            self.load_box(box, destination, full, x, y)

    def load_box(self, box: int, destination: Any, full: Any, x: Any, y: Any) -> None:
        if self.multicast:
            load_tile_cta(destination + self.first * ROW_BYTES, self.map, full, x, y + self.first, ctas=self.ctas)
        else:
            load_tile_cta(destination, self.map, full, x, y)


@dataclass(frozen=True)
class TokenTile:
    """`rows` tokens from `row` on of a K-major matrix, with any FP32 scales, one per token and K block, M-major, by map `scales`."""

    tokens: Fetch
    row: Int32
    rows: Int32
    num_bytes: Int32  # that TMA brings into one CTA for a stage
    scales: Any = None
    scale_step: cutlass.Constexpr[int] = 1  # rows; the first scale that is fetched is of a multiple

    def load_scales(self, stage: Stage, full: Any, k: Any) -> None:
        if self.scales is not None:
            load_tile_cta(stage.shared("sfa"), self.scales, full, self.row & -self.scale_step if self.scale_step > 1 else self.row, k)


@cute.jit
def load_tokens(stage: Stage, tile: TokenTile, k_blocks: Int32, first: Any = 0):
    """Fills `tokens`, and `sfa` where there are scales, of `k_blocks` stages, from K block `first` on; returns the stage after them."""
    for k in cutlass.range(first, first + k_blocks, 1, unroll=1):
        stage.wait_empty()
        full = stage.full
        if elect():
            arrive_expect(full, tile.num_bytes)
            if tile.tokens.first < tile.rows:
                tile.tokens.load(stage.shared("tokens"), full, k * ROW_BYTES, tile.row)
            tile.load_scales(stage, full, k)
        stage = stage.next()
    return stage


@dataclass(frozen=True)
class WeightTile:
    """A tile's weight rows, from `row` on of what the map sees."""

    weights: Fetch
    row: Int32
    # for weights stored as tiles of 128 of K, one after another (quant.tile_sm90): the rows of a tile, by which the next K block is
    # further down.  0 for a K-major matrix, where the next K block is further along the row
    tile_rows: cutlass.Constexpr[int]
    num_bytes: cutlass.Constexpr[int]  # that TMA brings into one CTA for a stage

    def place(self, k: Any) -> tuple[Any, Any]:
        return (0, self.row + k * self.tile_rows) if self.tile_rows else (k * ROW_BYTES, self.row)

    def load(self, destination: Any, full: Any, k: Any) -> None:
        self.weights.load(destination, full, *self.place(k))

    def load_box(self, box: int, destination: Any, full: Any, k: Any) -> None:
        self.weights.load_box(box, destination, full, *self.place(k))

    def load_scales(self, stage: Stage, full: Any, k: Any) -> None:
        """Loads nothing: math warps read the weights' scales from global memory."""


@dataclass(frozen=True)
class GroupsOfTile(WeightTile):
    """Of a packed tile, whose codes are fetched by groups of 128 rows, group `first` and, if it is `whole`, the other one; and all
    `records`, by a map of their own.  All lies in a stage as in the tile."""

    num_bytes: Any
    records: Int64
    first: Int32
    whole: Boolean

    @staticmethod
    def of(codes: Any, records: Any, row: Any, halves: Any, rank: Any) -> GroupsOfTile:
        """If the CTAs of a cluster have `halves`, that of CTA `rank`."""
        num_bytes = select(halves, Int32(TILE_BYTES - GROUP.code_bytes), Int32(TILE_BYTES))
        return GroupsOfTile(Fetch.alone(codes), row, TILE_LINES, num_bytes, records, select(halves, rank, Int32(0)), halves == 0)

    @cute.jit
    def load(self, destination: Int32, full: Int32, k: Int32):
        x, y = self.place(k)
        self.weights.load(destination + self.first * GROUP.code_bytes, full, x, y + self.first * GROUP.code_lines)
        load_tile_cta(destination + WHOLE_TILE.code_bytes, self.records, full, x, y + WHOLE_TILE.code_lines)
        if self.whole:
            self.weights.load(destination + GROUP.code_bytes, full, x, y + GROUP.code_lines)


@cute.jit
def load_weights(stage: Stage, tile: WeightTile, k_blocks: Int32, first: Any = 0, burst: cutlass.Constexpr[int] = 1):
    """Fills `weights` of `k_blocks` stages, from K block `first` on, or from 0 on `burst` at once; returns the stage after them."""
    if cutlass.const_expr(burst > 1):
        return load_weights_in_bursts(stage, tile, k_blocks, burst)
    for k in cutlass.range(first, first + k_blocks, 1, unroll=1):
        stage.wait_empty()
        full = stage.full
        if elect():
            arrive_expect(full, tile.num_bytes)
            tile.load(stage.shared("weights"), full, k)
            tile.load_scales(stage, full, k)
        stage = stage.next()
    return stage


@cute.jit
def load_weights_in_bursts(stage: Stage, tile: WeightTile, k_blocks: Int32, burst: cutlass.Constexpr[int]):
    """The same for a K-major matrix, `burst` K blocks at once, box by box, so that memory is asked for as many times 128 bytes of each row;
    `k_blocks` is a multiple."""
    for k in cutlass.range(0, k_blocks, burst, unroll=1):
        stages = [stage]
        for _ in cutlass.range_constexpr(burst - 1):
            stages.append(stages[-1].next())
        for one in stages:
            one.wait_empty()
        if elect():
            for one in stages:
                arrive_expect(one.full, tile.num_bytes)
            for box in range(tile.weights.boxes):
                for i, one in enumerate(stages):
                    tile.load_box(box, one.shared("weights"), one.full, k + i)
        stage = stages[-1].next()
    return stage


BLOCKS, HALVES = 2, 2
AHEAD = 2  # units of codes whose loads come before the stores of another
CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES
BLOCK_BYTES = CHUNK_BYTES // BLOCKS
WARP_BYTES = BLOCK_BYTES // 4  # the rows of a block that one of four warps decodes
CODE_FIELDS = {"weights": "codes", "full_barrier": "codes_full_barrier", "empty_barrier": "codes_empty_barrier"}


@dataclass(frozen=True)
class CodeStage(Stage):
    """A stage of the ring of packed tiles: `codes` and mbarriers of its own in the place of a stage's weights."""

    @staticmethod
    def of(stage: Stage) -> CodeStage:
        """At the position of another ring's stage, which has the same depth."""
        return CodeStage(stage.plan, 1, stage.smem, stage.ring)

    def shared(self, name: str) -> Any:
        return super().shared(CODE_FIELDS[name])


@dataclass(frozen=True)
class Half:
    """A half of a tile that both CTAs of a cluster multiply: the group of 128 rows that this CTA, number `rank`, decodes for both."""

    rank: Int32

    def there(self, address: Any) -> Any:
        return in_cta(address, 1 - self.rank)


@cute.jit
def decode_tile(
    stage: Stage, me: MathThread, table: Int32, k_blocks: Int32, part: cutlass.Constexpr[PackedPart] = WHOLE_TILE, half: Half | None = None
):
    """One of four warps: its rows of `k_blocks` stages, each with a part of a tile of whole groups, or of a `half` of the whole tile.
    Returns the stage after them."""
    for k in cutlass.range(k_blocks, unroll=1):
        codes = CodeStage.of(stage)
        codes.wait_full()
        shifts = shifts_of_stage(codes, me, part, half)
        stage.wait_empty()
        if (me.warp == 0) & (me.lane == 0):
            store_shared_u32(stage.shared("sfb"), load_shared_u32(record_of(codes, me, part, 0) + SCALE_OFFSET))
        if k + 1 == k_blocks:
            send_exponents(codes, stage, me, part)
        decode_stage(codes, stage, me, table, shifts, half)
        fence_async_shared()  # wgmma reads the decoded rows through the async proxy
        sync_warp()
        if me.lane == 0:
            if cutlass.const_expr(half is not None):
                send_rows(stage, me, half)  # type: ignore[arg-type]
            arrive(stage.full)
        release_stage(codes, me.lane)
        stage = stage.next()
    return stage


def record_of(codes: Stage, me: MathThread, part: PackedPart, group: Any) -> Any:
    """Shared address of that of the rows that a thread decodes."""
    return codes.shared("weights") + (part.code_bytes + record_index(group, me.warp, row_of(me.lane)) * RECORD_BYTES)


def shifts_of_stage(codes: Stage, me: MathThread, part: PackedPart, half: Half | None) -> tuple[Any, ...]:
    """Words of the rows that a thread decodes, block by block."""
    groups = range(part.groups) if half is None else (half.rank,)
    return tuple(word for g in groups for word in load_shared_v2(record_of(codes, me, part, g)))


def rows_of(stage: Stage, half: Half | None) -> Any:
    """Shared address of the E4M3 rows of a stage that are decoded here."""
    weights = stage.shared("weights")
    return weights if half is None else weights + half.rank * CHUNK_BYTES


def send_rows(stage: Stage, me: MathThread, half: Half) -> None:
    """One lane: what its warp has decoded, into the same stage of the other CTA, whose `full` counts the bytes.  That stage is free, too:
    `empty` counts the math warps of both."""
    full, rows = half.there(stage.full), rows_of(stage, half) + me.warp * WARP_BYTES
    for block in range(BLOCKS):
        source = rows + block * BLOCK_BYTES
        copy_to_cta(half.there(source), source, WARP_BYTES, full)


@cute.jit
def send_exponents(codes: Stage, stage: Stage, me: MathThread, part: cutlass.Constexpr[PackedPart]):
    """The rows' powers of two, for which only the last stage of a tile is asked."""
    if (me.lane & 3) == 0:
        for g in cutlass.range_constexpr(part.groups):
            place = stage.shared("row_exponents") + 4 * record_index(g, me.warp, row_of(me.lane))
            store_shared_u32(place, load_shared_u32(record_of(codes, me, part, g) + EXPONENTS_OFFSET))


@cute.jit
def decode_stage(codes: Stage, stage: Stage, me: MathThread, table: Int32, shifts: Any, half: Half | None):
    """The warp's rows of one K block."""
    packed, tiny = codes.shared("weights"), Uint32(0)
    if cutlass.const_expr(half is not None):
        packed = packed + half.rank * GROUP.code_bytes  # type: ignore[union-attr]
    for word in shifts:
        tiny = tiny | (word & (word << 1))
    if ballot(tiny & Uint32(TINY_BITS)) == 0:
        decode_rows(packed, rows_of(stage, half), me, table, shifts, by_table=False)
    else:
        decode_rows(packed, rows_of(stage, half), me, table, shifts, by_table=True)


def row_of(lane: Any) -> Any:
    """The row, or the one 8 further, that a lane decodes.  Eight lanes that store together have two such pairs of rows, 4 apart, so that
    their eight chunks under SW128 are in different banks."""
    return (lane & 4) | (lane >> 3)


def decode_rows(packed: Any, weights: Any, me: MathThread, table: Any, shifts: tuple[Any, ...], by_table: bool) -> None:
    """All rows of the warp; without a table where no shift makes subnormal numbers."""
    lane = me.lane
    # Row `lane % 8` of matrix `lane / 8`: the unit of thread `lane / 8` of the quad whose row lanes 4 (lane % 8) and further decode.
    source = packed + (me.warp * 32 + unit_of(4 * row_of(4 * (lane & 7)) + (lane >> 3))) * 16
    # A lane has word `lane % 4` of four units: of the second of two rows if it is odd, and step `word / 2` of a half's two.  The first four
    # values of all four are 16 bytes, chunk `word` of the row's half; the others are the chunk beside it.
    row, word = row_of(lane), lane & 3
    second, step = word & 1, word >> 1
    first = weights + ((me.warp * 16 + second * 8 + row) * ROW_BYTES + ((word ^ row) << 4))
    own = [shifts_of_pair(shifts[BLOCKS * g], shifts[BLOCKS * g + 1], second, step) for g in range(len(shifts) // BLOCKS)]
    units = [(half, g, block) for half in range(HALVES) for g in range(len(shifts) // BLOCKS) for block in range(BLOCKS)]

    def load(unit: tuple[int, int, int]) -> tuple[Any, ...]:
        half, g, block = unit
        return load_four(source + ((g * BLOCKS + block) * HALVES + half) * HALF_BYTES)

    # Neither compiler moves a load over a store: ahead of other units' stores, a load has their arithmetic to come back.
    loaded = [load(unit) for unit in units[:AHEAD]]
    for i, (half, g, block) in enumerate(units):
        number = BLOCKS * half + block
        entry = entry_by_table(table, own[g], number) if by_table else normal_entry(own[g], number)
        pairs = [decode(one, entry) for one in loaded[i]]
        loaded += [load(unit) for unit in units[i + AHEAD : i + AHEAD + 1]]
        place, offset = first ^ (64 * half), g * CHUNK_BYTES + 64 * block * ROW_BYTES
        store_shared_v4(place + offset, tuple(pair[0] for pair in pairs))
        store_shared_v4((place ^ 16) + offset, tuple(pair[1] for pair in pairs))

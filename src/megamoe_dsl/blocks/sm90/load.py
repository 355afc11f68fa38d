"""The loops of the loader warps of SM90: token tiles with their scales, and weight tiles, stage by stage (article 4.2, 4.3): they wait for
empty and signal full, with the bytes that TMA brings.

CTAs of a cluster may fetch together what they share: each fetches a part for all of them.  The whole warp runs the loop, and one lane is
elected only where instructions are issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from ...device.mbarrier import arrive_expect
from ...device.ring import Stage
from ...device.tma import load_tile_cta, load_tile_multicast
from ...device.warp import ClusterPlace, elect
from ...hardware.operand_tile import ROW_BYTES
from ...hardware.packed_tile import GROUP, TILE_BYTES, TILE_LINES, WHOLE_TILE
from ...layouts.arith import select


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
            select(shared, place.everyone, place.itself),
            True,
        )

    def load(self, destination: Any, full: Any, x: Any, y: Any) -> None:
        for box in range(self.boxes):
            self.load_box(box, destination, full, x, y)

    def load_box(self, box: int, destination: Any, full: Any, x: Any, y: Any) -> None:
        if self.multicast:
            load_tile_multicast(destination + self.first * ROW_BYTES, self.map, full, x, y + self.first, self.ctas)
        else:
            load_tile_cta(destination, self.map, full, x, y)


@dataclass(frozen=True)
class TokenTile:
    """`rows` tokens from `row` on of a K-major matrix, with their FP32 scales, one per token and K block, M-major, by map `scales`, if they
    have any."""

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
        """Loads nothing: math warps read scales of weights from memory."""


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

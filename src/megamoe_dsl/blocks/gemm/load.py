"""The two loader warps of the GEMM kernel: which rows, of which matrix; the loops are blocks (blocks/sm90/load.py).

Both wait for work_tile_full per tile and empty per stage, and signal work_tile_empty and full; where warps of their own decode B,
codes_empty and codes_full take the places of empty and full.  Those warps wait for codes_full and empty, and signal codes_empty and full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from ...device.ring import SCALE_BYTES, Stage
from ...device.tma import load_tile_cta
from ...hardware.operand_tile import BOX_BYTES, K_ROWS, ROW_BYTES
from ...hardware.packed_tile import TILE_LINES, PackedPart, lines_of
from ...layouts.arith import select
from .. import tiles
from ..sm90 import load
from ..sm90.load import CodeStage, Fetch, OperandMaps, TokenTile, WeightTile, decode_tile
from ..sm90.share import MathThread
from .context import SAME_TOKENS, SAME_WEIGHTS, GemmContext, GemmTile
from .problem import UP_FIRST
from .tile import SCALE_STEP, part


def load_tokens(ctx: GemmContext) -> None:
    tiles.load_tokens(ctx, ctx.first_stage, fill_tokens, lambda ctx, tile: ctx.wait_rows(tile))


def fill_tokens(ctx: GemmContext, tile: GemmTile, stage: Stage) -> Any:
    """A tile's rows of A; returns the ring's next stage."""
    config, half = ctx.config, ctx.is_half(tile)
    maps = OperandMaps(ctx.maps.tokens_part, ctx.maps.tokens, part(config.block_m))
    rows = Int32(select(half, part(config.block_m), config.block_m))
    tokens = Fetch.of(maps, ctx.place, half, tile.sharing == SAME_TOKENS)
    num_bytes = rows * ROW_BYTES + 4 * config.rows.scale_rows(config.tile)
    row, scales = ctx.source_row(tile), ctx.maps.sfa if config.tile.scaled else None
    found = TokenTile(tokens, row, rows, num_bytes, scales, SCALE_STEP)
    return load.load_tokens(stage, found, ctx.k_blocks_of(tile), ctx.first_k_block_of(tile))


def fetch_weights(ctx: GemmContext, tile: GemmTile, rows: int) -> Fetch:
    """How a box of `rows` rows of B is fetched; a CTA alone in its cluster has no map of a part and needs none."""
    maps = OperandMaps(getattr(ctx.maps, "weights_part", ctx.maps.weights), ctx.maps.weights, part(rows))
    return Fetch.of(maps, ctx.place, False, tile.sharing == SAME_WEIGHTS)


def weight_tile(ctx: GemmContext, tile: GemmTile) -> WeightTile:
    """A tile's rows of B."""
    config = ctx.config
    weights = fetch_weights(ctx, tile, config.block_n)
    row = tile.group * config.problem.group_rows + tile.n_block * config.block_n
    return WeightTile(weights, row, 0, config.block_n * ROW_BYTES)


@dataclass(frozen=True)
class ScaledRows(WeightTile):
    """Rows with one scale each for 128 of K, fetched by map `scales`."""

    scales: Int64

    def load_scales(self, stage: Stage, full: Any, k: Any) -> None:
        load_tile_cta(stage.shared("sfb"), self.scales, full, self.row, k)


def summed_tile(ctx: GemmContext, tile: GemmTile) -> ScaledRows:
    """A tile's rows of the transposed right operand."""
    columns = ctx.config.block_n
    num_bytes = columns * (ROW_BYTES + SCALE_BYTES)
    return ScaledRows(fetch_weights(ctx, tile, columns), tile.n_block * columns, 0, num_bytes, ctx.maps.sfb)


@dataclass(frozen=True)
class ColumnTile(WeightTile):
    """An MN-major operand: 64 rows of K a stage, one box for every 64 columns from byte `column` of a row on.  If two CTAs share the
    columns, each fetches half of the boxes for both, from box `weights.first` on."""

    column: Int32

    def load(self, destination: Any, full: Any, k: Any) -> None:
        fetch, boxes, y = self.weights, self.num_bytes // BOX_BYTES, self.row + k * K_ROWS
        if fetch.multicast:
            for box in range(boxes // 2):
                own = fetch.first + box
                load_tile_cta(destination + own * BOX_BYTES, fetch.map, full, self.column + own * ROW_BYTES, y, ctas=fetch.ctas)
        else:
            for box in range(boxes):
                load_tile_cta(destination + box * BOX_BYTES, fetch.map, full, self.column + box * ROW_BYTES, y)


@dataclass(frozen=True)
class SharedColumnTile(ColumnTile):
    """As `ColumnTile`, if the cluster's CTAs may have different columns: a CTA `apart` fetches all boxes for itself."""

    apart: Boolean

    @cute.jit
    def load(self, destination: Int32, full: Int32, k: Int32):
        super().load(destination, full, k)
        if self.apart:
            half = self.num_bytes // 2
            rest = ColumnTile(Fetch.alone(self.weights.map), self.row, 0, half, self.column + half // K_ROWS)
            rest.load(destination + half, full, k)


def column_tile(ctx: GemmContext, tile: GemmTile, row: Any, shared: Any = True) -> ColumnTile:
    """A tile's columns of B from `row` on; `shared`: whether the cluster's other CTA has the same columns."""
    columns, maps = ctx.config.block_n, ctx.maps
    fetch = Fetch.of(OperandMaps(maps.weights, maps.weights, columns // K_ROWS // 2), ctx.place, False, shared)
    fields = fetch, row, 0, columns * ROW_BYTES, tile.n_block * (columns * 2)
    return ColumnTile(*fields) if shared is True or ctx.place.size == 1 else SharedColumnTile(*fields, shared == 0)


def transposed_tile(ctx: GemmContext, tile: GemmTile) -> ColumnTile:
    return column_tile(ctx, tile, tile.group * ctx.config.problem.k, tile.sharing == SAME_WEIGHTS)


def load_weights(ctx: GemmContext, rows_of: Callable[..., WeightTile] = weight_tile) -> None:
    """Loads the rows of B that `rows_of` names for each tile; into the ring of codes if separate warps decode them."""
    first = CodeStage.of(ctx.first_stage) if ctx.config.weights.decode_warps else ctx.first_stage

    def fill(ctx: GemmContext, tile: GemmTile, stage: Stage) -> Any:
        return load.load_weights(stage, rows_of(ctx, tile), ctx.k_blocks_of(tile), ctx.first_k_block_of(tile), ctx.config.burst)

    tiles.load_weights(ctx, first, fill)


def decode_weights(ctx: GemmContext, warp: Int32) -> None:
    """One of the four warps that decode B for math warps."""
    me, table, part = MathThread(Int32(0), warp, cute.arch.lane_idx()), ctx.shared("decoded"), PackedPart(ctx.config.block_n)
    tiles.each_tile(ctx, None, ctx.first_stage, lambda ctx, tile, stage: decode_tile(stage, me, table, ctx.k_blocks_of(tile), part))


@dataclass(frozen=True)
class PackedLines(WeightTile):
    """Packed tiles: codes from line `row` on, records from line `record_row` of map `records`, placed after the codes in a stage."""

    records: Int64
    record_row: Int32
    code_bytes: cutlass.Constexpr[int]

    def load(self, destination: Any, full: Any, k: Any) -> None:
        super().load(destination, full, k)
        load_tile_cta(destination + self.code_bytes, self.records, full, 0, self.record_row + k * self.tile_rows)


def packed_lines(part: PackedPart, maps: tuple[Any, Any], base: Any, number: Any, k_blocks: int) -> PackedLines:
    """Part `number` of a packed matrix that begins at line `base`; `maps` are those of codes and of records."""
    codes, records = part.first_lines(number, k_blocks)
    return PackedLines(Fetch.alone(maps[0]), base + codes, TILE_LINES, part.num_bytes, maps[1], base + records, part.code_bytes)


def packed_tile(ctx: GemmContext, tile: GemmTile) -> PackedLines:
    """A part of a packed tile for every K block."""
    problem, maps = ctx.config.problem, (ctx.maps.codes, ctx.maps.records)
    lines_of_b = lines_of(problem.n, problem.k_blocks)
    return packed_lines(PackedPart(ctx.config.block_n), maps, tile.group * lines_of_b, tile.n_block, problem.k_blocks)


@dataclass(frozen=True)
class GateUpFetch(Fetch):
    """Rows of gate, then `rows` rows of up, which lie `apart` rows away in B (negative: before gate)."""

    rows: cutlass.Constexpr[int]
    apart: cutlass.Constexpr[int]

    boxes: ClassVar[int] = 2

    def load_box(self, box: int, destination: Any, full: Any, x: Any, y: Any) -> None:
        super().load_box(box, destination + box * self.rows * ROW_BYTES, full, x, y + box * self.apart)


def gate_and_up(ctx: GemmContext, tile: GemmTile) -> WeightTile:
    """A tile's rows of B."""
    config, problem = ctx.config, ctx.config.problem
    rows, up_first = config.block_n // 2, problem.gate_up == UP_FIRST
    apart = -problem.n // 2 if up_first else problem.n // 2
    box = fetch_weights(ctx, tile, rows)
    fetch = GateUpFetch(box.map, box.first, box.ctas, box.multicast, rows, apart)
    row = tile.group * problem.n + tile.n_block * rows + up_first * (problem.n // 2)
    return WeightTile(fetch, row, 0, config.block_n * ROW_BYTES)

"""The two loader warps of the GEMM kernel: which rows, of which matrix; the loops are blocks (blocks/sm90/load.py).

| role         | waits                                     | signals                                  |
|---|---|---|
| load_tokens  | work_tile_full per tile; empty per stage  | work_tile_empty per tile; full per stage |
| load_weights | work_tile_full per tile; empty per stage  | work_tile_empty per tile; full per stage |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...hardware.operand_tile import ROW_BYTES
from ...layouts.arith import select
from ...layouts.records import Activity, Role
from ..sm90 import load
from ..sm90.load import Fetch, OperandMaps, RowTile, TokenTile, WeightTile
from .context import GemmContext
from .maps import part
from .tile import SCALE_STEP
from .work_tile import GemmTile, next_tile, read_end


@dataclass(frozen=True)
class RowsOfTile(TokenTile):
    """A tile's rows of A, the first of which may be any; the same as that where it is a multiple of four."""

    @property
    def scale_row(self) -> Any:
        """The last multiple of four up to the first row."""
        return self.row & -SCALE_STEP


def with_scales(ctx: GemmContext, tile: RowTile) -> RowTile:
    """The same rows with their scales, where they have any."""
    if not ctx.config.tile.scaled:
        return tile
    return RowsOfTile(tile.tokens, tile.row, tile.rows, tile.num_bytes, ctx.maps.sfa)


@cute.jit
def load_tokens(ctx: GemmContext):
    """Rows of A and their scales."""
    config = ctx.config
    ctx.begin(Role.TOKEN_LOADER)
    maps = OperandMaps(ctx.maps.tokens_part, ctx.maps.tokens, part(config.block_m))
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        ctx.wait_rows(tile)
        ctx.stamp(Activity.WAIT_TOKENS, tile)
        half = ctx.is_half(tile)
        rows = Int32(select(half, part(config.block_m), config.block_m))
        tokens = Fetch.of(maps, ctx.place, half, tile.same_tokens)
        num_bytes = rows * ROW_BYTES + 4 * config.rows.scale_rows(config.tile)
        operand = with_scales(ctx, RowTile(tokens, ctx.source_row(tile), rows, num_bytes))
        stage = load.load_tokens(stage, operand, ctx.k_blocks, ctx.first_k_block)
        ctx.stamp(Activity.LOAD, tile)
        tile, tiles = next_tile(tiles)
    read_end(tile, tiles, config.blocks_per_fetch)


def weight_tile(ctx: GemmContext, tile: GemmTile) -> WeightTile:
    """A tile's rows of B."""
    config = ctx.config
    # CTAs that work alone have no map of a part, and need none.
    maps = OperandMaps(getattr(ctx.maps, "weights_part", ctx.maps.weights), ctx.maps.weights, part(config.block_n))
    weights = Fetch.of(maps, ctx.place, False, tile.same_weights)
    row = tile.group * config.problem.n + tile.n_block * config.block_n
    return WeightTile(weights, row, 0, config.block_n * ROW_BYTES)


@cute.jit
def load_weights(ctx: GemmContext, rows_of: Callable[..., WeightTile] = weight_tile):
    """Rows of B, which `rows_of` says of a tile."""
    ctx.begin(Role.WEIGHT_LOADER)
    tile, tiles = next_tile(ctx.first_tile)
    stage = ctx.first_stage
    while tile.valid():
        rows = rows_of(ctx, tile)
        if cutlass.const_expr(ctx.config.burst > 1):
            stage = load.load_weights_in_bursts(stage, rows, ctx.k_blocks, ctx.config.burst)
        else:
            stage = load.load_weights(stage, rows, ctx.k_blocks, ctx.first_k_block)
        ctx.stamp(Activity.LOAD, tile)
        tile, tiles = next_tile(tiles)
    read_end(tile, tiles, ctx.config.blocks_per_fetch)

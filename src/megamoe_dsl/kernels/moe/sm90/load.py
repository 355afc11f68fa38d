"""The warps of SM90 that move tiles: loaders, whose loops are blocks (blocks/sm90/load.py), and the one that stores.

| role         | waits                                                                     | signals                     |
|---|---|---|
| load_tokens  | work_tile_full and an arrival count or mask per tile; empty per stage     | work_tile_empty per tile; full per stage |
| load_weights | work_tile_full per tile; empty per stage                                  | work_tile_empty per tile; full per stage |
| load_operands | of both, and codes_empty per stage                                       | of both, and codes_full per stage |
| decode_weights | work_tile_full per tile; codes_full and empty per stage  | work_tile_empty per tile; full and codes_empty per stage |
| store_tiles  | work_tile_full, unless it deals tiles; store_full per Linear1 tile | work_tile_empty; store_empty, fc2_arrival (release) |

Where weights are decoded one warp loads both, packed tiles into the ring of codes, and four warps decode them.  The store warp takes
Linear1 tiles from SMEM into the Linear2 pool, so that the math warps need not wait for the stores; where warps are few the scheduler warp
does so: it has time until the next tile is asked for.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks import tiles
from ....blocks.sm90 import load
from ....blocks.sm90.load import CodeStage, Fetch, GroupsOfTile, Half, OperandMaps, TokenTile, WeightTile, decode_tile
from ....blocks.sm90.share import MathThread
from ....blocks.tiles import each_tile
from ....device.mbarrier import arrive, wait
from ....device.ring import Ring, Stage
from ....device.tma import commit_group, store_tile, wait_group, wait_group_read
from ....device.warp import sync_warp
from ....hardware.operand_tile import BLOCK_K
from ....hardware.packed_tile import WHOLE_TILE
from ....layouts.arith import select
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import FC1, Block
from ..context import Context, WorkTile, next_tile
from ..pool import part_mark, signal_part, wait_operands
from ..tile_scheduler import schedule_tiles


def load_tokens(ctx: Context) -> None:
    """Loads tokens and their scales, tile by tile, in the token-loader warp."""

    def fill(ctx: Context, tile: WorkTile, stage: Stage) -> Any:
        return load.load_tokens(stage, tokens_of(ctx, tile), ctx.k_blocks_of(tile))

    tiles.load_tokens(ctx, ctx.first_stage, fill, wait_operands)


def tokens_of(ctx: Context, tile: WorkTile) -> TokenTile:
    """A tile's tokens, with their scales if they have any."""
    config, half = ctx.config, ctx.is_half(tile)
    maps = OperandMaps(ctx.map("tokens_part", tile.phase), ctx.map("tokens", tile.phase), config.part_tokens)
    tokens = Fetch.of(maps, ctx.place, half, tile.same_tokens)
    rows = select(half, config.part_tokens, config.block_m)
    scales = ctx.map("sfa", tile.phase) if config.scaled else None
    row = config.first_row(tile.pool_block)
    num_bytes = config.token_transaction(rows)
    if config.halves_decoding:
        num_bytes = num_bytes + select(tile.same_weights, Int32(config.weight_bytes // 2), Int32(0))  # from the other CTA
    return TokenTile(tokens, row, rows, num_bytes, scales)


def load_weights(ctx: Context) -> None:
    """TMA-B: 256 weight rows by 128 bytes of K are one contiguous tile; the tiles of a block's K follow one another."""

    def fill(ctx: Context, tile: WorkTile, stage: Stage) -> Any:
        return load.load_weights(stage, weights_of(ctx, tile), ctx.k_blocks_of(tile))

    tiles.load_weights(ctx, ctx.first_stage, fill)


def weights_of(ctx: Context, tile: WorkTile) -> WeightTile:
    """A tile's weights, FP8 or packed."""
    config, lines = ctx.config, ctx.config.weight_lines
    same = tile.same_weights
    maps = OperandMaps(ctx.map("weights_part", tile.phase), ctx.map("weights", tile.phase), lines // config.cluster)
    weights = Fetch.of(maps, ctx.place, False, same)
    k_blocks = ctx.k_blocks_of(tile)
    n_blocks = select(tile.phase == FC1, Int32(config.fc1_n_blocks), Int32(config.fc2_n_blocks))
    row = (tile.expert * n_blocks + tile.n_block) * k_blocks * lines
    if config.halves_decoding:
        codes, records = (ctx.map(one, tile.phase) for one in ("weights", "weights_part"))
        return GroupsOfTile.of(codes, records, row, same, ctx.cta_rank)
    return WeightTile(weights, row, lines, config.fetched_weight_bytes)


def load_operands(ctx: Context) -> None:
    """Both of them, packed weights a K block ahead of tokens: they have farther to go, and need not wait for other CTAs."""
    each_tile(ctx, Role.TOKEN_LOADER, (CodeStage.of(ctx.first_stage), ctx.first_stage), load_both)


@cute.jit
def load_both(ctx: Context, tile: WorkTile, stages: tuple[CodeStage, Stage]):
    """A tile's stages of both rings; returns those after them."""
    codes, stage = stages
    weights, k_blocks = weights_of(ctx, tile), ctx.k_blocks_of(tile)
    codes = load.load_weights(codes, weights, Int32(1))
    wait_operands(ctx, tile)
    ctx.stamp(Activity.WAIT_TOKENS, tile)
    tokens = tokens_of(ctx, tile)
    for k in cutlass.range(k_blocks, unroll=1):
        codes = load.load_weights(codes, weights, select(k + 1 < k_blocks, Int32(1), Int32(0)), k + 1)
        stage = load.load_tokens(stage, tokens, Int32(1), k)
    ctx.stamp(Activity.LOAD, tile)
    return codes, stage


PHASE_AND_TOKENS = (0, 3)  # words of a work tile


@cute.jit
def decode_weights(ctx: Context, warp: Int32):
    """Decodes the packed weights of every stage to E4M3, in each of four warps a fourth of the rows."""
    me = MathThread(Int32(0), warp, cute.arch.lane_idx())
    table = ctx.shared("decoded")
    tile, tiles = next_tile(ctx.first_tile, PHASE_AND_TOKENS)
    stage = ctx.first_stage
    while tile.valid():
        if cutlass.const_expr(ctx.config.halves_decoding):
            if tile.same_weights:
                stage = decode_tile(stage, me, table, ctx.k_blocks_of(tile), WHOLE_TILE, Half(ctx.cta_rank))
            else:
                stage = decode_tile(stage, me, table, ctx.k_blocks_of(tile))
        else:
            stage = decode_tile(stage, me, table, ctx.k_blocks_of(tile))
        tile, tiles = next_tile(tiles, PHASE_AND_TOKENS)


@cute.jit
def store_tiles(ctx: Context):
    """Stores the tiles of Linear1, one after another, in the store warp."""
    lane = cute.arch.lane_idx()
    tile, tiles = next_tile(ctx.first_tile)
    stores = Ring.start(1)
    while tile.valid():
        stores = store_if_fc1(ctx, tile, stores, lane)
        tile, tiles = next_tile(tiles)


@cute.jit
def schedule_and_store(ctx: Context):
    """Deals tiles and stores those of Linear1, in one warp; in a cluster the first CTA's warp deals, so that of the other only stores."""
    schedule_tiles(ctx, lambda ctx, block, stores: store_if_fc1(ctx, block, stores, cute.arch.lane_idx()))
    if cutlass.const_expr(ctx.config.cluster > 1):
        if ctx.cta_rank != 0:
            store_tiles(ctx)


@cute.jit
def store_if_fc1(ctx: Context, tile: WorkTile | Block, stores: Ring, lane: Int32):
    """A Linear1 tile, when the math warps have put it together: lane 0 issues.  Returns the staging buffer's place in its ring.

    `wait_group_read`: TMA has read the buffer, which math warps may fill again.  `wait_group`: the rows are in global memory, and the
    release of `signal_part` publishes them.
    """
    if tile.phase == FC1:
        wait(ctx.barrier("store_full"), stores.phase)
        stores = stores.next()
        if lane == 0:
            output = select(ctx.is_half(tile), ctx.map("fc1_output_part"), ctx.map("fc1_output"))
            store_boxes(ctx, tile, output)
            commit_group()
            wait_group_read(0)
            arrive(ctx.barrier("store_empty"))
            wait_group(0)
            signal_part(ctx, mark=part_mark(ctx, tile.n_block), arrival=ctx.at("fc2_arrival", tile.pool_block))
        sync_warp()
    return stores


def store_boxes(ctx: Context, tile: WorkTile | Block, output: Any) -> None:
    """All of the tile, by map `output`, in boxes whose rows are 128 bytes."""
    config = ctx.config
    first, row = tile.n_block * (config.fc1_boxes * BLOCK_K), config.first_row(tile.pool_block)
    for box in range(config.fc1_boxes):
        store_tile(output, ctx.shared("cd") + config.fc1_box(box), first + box * BLOCK_K, row)

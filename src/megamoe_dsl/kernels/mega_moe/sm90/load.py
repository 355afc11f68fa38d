"""The two loader warps of SM90: token tiles with their scales, and weight tiles (article 4.2, 4.3).

| role         | waits                                                                     | signals                     |
|---|---|---|
| load_tokens  | work_tile_full and an arrival count or mask per tile; empty per stage     | work_tile_empty per tile; full per stage |
| load_weights | work_tile_full per tile; empty per stage                                  | work_tile_empty per tile; full per stage |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import arrive_expect, wait
from ....device.ring import Ring
from ....device.tma import load_tile_cta, load_tile_multicast
from ....device.warp import elect
from ....layouts.arith import select
from ....schedule import FC1
from ..arrival import wait_operands
from ..layouts.tile import BLOCK_K
from ..layouts.trace import Activity, Role
from ..trace import begin, detail_of, stamp
from .context import Sm90Context, is_half_tile
from .maps import Map
from .smem_plan import TILE_ROWS, WORK_TILES
from .tile_scheduler import next_tile


@dataclass(frozen=True)
class Fetch:
    """How a tile's operand comes: the rows from `first` on of each K block's, by `map`, into the CTAs of `ctas`, a mask."""

    map: Int64
    first: Int32
    ctas: Int32

    @staticmethod
    def of(ctx: Sm90Context, whole: Map, part: Map, phase: Any, part_rows: int, half: Any, shared: Any) -> Fetch:
        """All rows for this CTA, or of a `half` tile the first part; if the operand is `shared`, this CTA's part for all CTAs of the
        cluster."""
        cluster = ctx.config.cluster
        if cluster == 1:
            return Fetch(select(half, ctx.map(part, phase), ctx.map(whole, phase)), Int32(0), Int32(1))
        return Fetch(
            select(shared | half, ctx.map(part, phase), ctx.map(whole, phase)),
            select(shared, ctx.cta_rank * part_rows, Int32(0)),
            select(shared, Int32((1 << cluster) - 1), Int32(1) << ctx.cta_rank),
        )

    def load(self, ctx: Sm90Context, destination: Any, full: Any, x: Any, y: Any) -> None:
        """Rows from `y` on, for a stage whose operand begins at `destination`."""
        if ctx.config.cluster == 1:
            load_tile_cta(destination, self.map, full, x, y)
        else:
            load_tile_multicast(destination + self.first * BLOCK_K, self.map, full, x, y + self.first, self.ctas)


@cute.jit
def load_tokens(ctx: Sm90Context):
    """TMA-A."""
    config, plan = ctx.config, ctx.config.smem
    begin(ctx, Role.TOKEN_LOADER)
    tile, places = next_tile(ctx, Ring.start(WORK_TILES))
    stamp(ctx, Activity.WAIT_COUNTS)
    ring = Ring.start(config.num_stages)
    while tile.valid():
        wait_operands(ctx, tile)
        stamp(ctx, Activity.WAIT_TOKENS, detail_of(tile))
        half = is_half_tile(ctx, tile)
        tokens = Fetch.of(ctx, Map.TOKENS, Map.TOKENS_PART, tile.phase, config.part_tokens, half, tile.same_tokens)
        rows = select(half, config.part_tokens, config.block_m)
        scales = ctx.map(Map.SFA, tile.phase)
        row = tile.pool_block * config.block_m
        for k in cutlass.range(select(tile.phase == FC1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks)), unroll=1):
            wait(ctx.barrier("empty", ring.index), ring.phase ^ 1)
            full = ctx.barrier("full", ring.index)
            if elect():
                arrive_expect(full, plan.token_transaction(rows))
                if tokens.first < rows:
                    tokens.load(ctx, ctx.shared("tokens", ring.index), full, k * BLOCK_K, row)
                load_tile_cta(ctx.shared("sfa", ring.index), scales, full, row, k)
            ring = ring.next()
        stamp(ctx, Activity.LOAD, detail_of(tile))
        tile, places = next_tile(ctx, places)


@cute.jit
def load_weights(ctx: Sm90Context):
    """TMA-B: 256 weight rows by 128 of K are one contiguous tile; the tiles of a block's K follow one another."""
    config, plan = ctx.config, ctx.config.smem
    begin(ctx, Role.WEIGHT_LOADER)
    tile, places = next_tile(ctx, Ring.start(WORK_TILES))
    stamp(ctx, Activity.WAIT_COUNTS)
    ring = Ring.start(config.num_stages)
    while tile.valid():
        weights = Fetch.of(ctx, Map.WEIGHTS, Map.WEIGHTS_PART, tile.phase, TILE_ROWS // config.cluster, False, tile.same_weights)
        is_fc1 = tile.phase == FC1
        k_blocks = select(is_fc1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks))
        n_blocks = select(is_fc1, Int32(config.fc1_n_blocks), Int32(config.fc2_n_blocks))
        row = (tile.expert * n_blocks + tile.n_block) * k_blocks * TILE_ROWS
        for k in cutlass.range(k_blocks, unroll=1):
            wait(ctx.barrier("empty", ring.index), ring.phase ^ 1)
            full = ctx.barrier("full", ring.index)
            if elect():
                arrive_expect(full, plan.weight_bytes)
                weights.load(ctx, ctx.shared("weights", ring.index), full, 0, row + k * TILE_ROWS)
            ring = ring.next()
        stamp(ctx, Activity.LOAD, detail_of(tile))
        tile, places = next_tile(ctx, places)

"""The two loader warps of SM90: token tiles with their scales, and weight tiles (article 4.2, 4.3).

| role         | waits                                                                           | signals                                 |
|---|---|---|
| load_tokens  | ticket_full and L1 arrival count or L2 arrival mask, per tile; empty, per stage | ticket_empty, per tile; full, per stage |
| load_weights | ticket_full, per tile; empty, per stage                                         | ticket_empty, per tile; full, per stage |
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....device.mbarrier import arrive_expect, wait
from ....device.ring import Ring
from ....device.tma import load_tile_cta, load_tile_multicast
from ....device.warp import elect
from ....layouts.arith import select
from ....layouts.smem_plan_sm90 import TICKETS, TILE_ROWS
from ....layouts.tile import BLOCK_K
from ....layouts.trace import Activity, Role
from ....schedule import LINEAR1
from ..arrival import wait_operands
from ..trace import begin, detail_of, stamp
from .context import Sm90Context
from .deal import next_tile
from .maps import Map


@cute.jit
def load_tokens(ctx: Sm90Context):
    """TMA-A."""
    config, plan = ctx.config, ctx.config.smem
    begin(ctx, Role.TOKEN_LOADER)
    tile, tickets = next_tile(ctx, Ring.start(TICKETS))
    stamp(ctx, Activity.WAIT_COUNTS)
    ring = Ring.start(config.num_stages)
    while tile.valid():
        wait_operands(ctx, tile)
        stamp(ctx, Activity.WAIT_TOKENS, detail_of(tile))
        tokens, scales = ctx.map(Map.TOKENS, tile.phase), ctx.map(Map.SFA, tile.phase)
        row = tile.pool_block * config.block_m
        for k in cutlass.range(select(tile.phase == LINEAR1, Int32(config.l1_k_blocks), Int32(config.l2_k_blocks)), unroll=1):
            wait(ctx.barrier("empty", ring.index), ring.phase ^ 1)
            full = ctx.barrier("full", ring.index)
            if elect():
                arrive_expect(full, plan.token_transaction)
                load_rows(ctx, Rows(ctx.shared("tokens", ring.index), tokens, full, config.block_m), k * BLOCK_K, row, tile.same_tokens)
                load_tile_cta(ctx.shared("sfa", ring.index), scales, full, row, k)
            ring = ring.next()
        stamp(ctx, Activity.LOAD, detail_of(tile))
        tile, tickets = next_tile(ctx, tickets)


@cute.jit
def load_weights(ctx: Sm90Context):
    """TMA-B: 256 weight rows by 128 of K are one contiguous tile; the tiles of a block's K follow one another."""
    config, plan = ctx.config, ctx.config.smem
    begin(ctx, Role.WEIGHT_LOADER)
    tile, tickets = next_tile(ctx, Ring.start(TICKETS))
    stamp(ctx, Activity.WAIT_COUNTS)
    ring = Ring.start(config.num_stages)
    while tile.valid():
        weights = ctx.map(Map.WEIGHTS, tile.phase)
        is_l1 = tile.phase == LINEAR1
        k_blocks = select(is_l1, Int32(config.l1_k_blocks), Int32(config.l2_k_blocks))
        n_blocks = select(is_l1, Int32(config.l1_n_blocks), Int32(config.l2_n_blocks))
        same_weights = tile.same_tokens == 0
        row = (tile.expert * n_blocks + tile.n_block) * k_blocks * TILE_ROWS
        for k in cutlass.range(k_blocks, unroll=1):
            wait(ctx.barrier("empty", ring.index), ring.phase ^ 1)
            full = ctx.barrier("full", ring.index)
            if elect():
                arrive_expect(full, plan.weight_bytes)
                load_rows(ctx, Rows(ctx.shared("weights", ring.index), weights, full, TILE_ROWS), 0, row + k * TILE_ROWS, same_weights)
            ring = ring.next()
        stamp(ctx, Activity.LOAD, detail_of(tile))
        tile, tickets = next_tile(ctx, tickets)


@dataclass(frozen=True)
class Rows:
    """Where an operand of a stage goes: `count` rows of 128 bytes at `destination`, by `map`, counted on `full`."""

    destination: Int32
    map: Int64
    full: Int32
    count: cutlass.Constexpr[int]


@cute.jit
def load_rows(ctx: Sm90Context, rows: Rows, x: Int32, y: Int32, shared: cutlass.Boolean):
    """An operand, which all CTAs of the cluster need if it is `shared`: then each fetches its part for all."""
    if cutlass.const_expr(ctx.config.cluster == 1):
        load_tile_cta(rows.destination, rows.map, rows.full, x, y)
    else:
        part = rows.count // ctx.config.cluster
        if shared:
            first = ctx.cta_rank * part
            load_tile_multicast(rows.destination + first * BLOCK_K, rows.map, rows.full, x, y + first, ctx.config.cluster)
        else:
            for first in cutlass.range_constexpr(0, rows.count, part):
                load_tile_cta(rows.destination + first * BLOCK_K, rows.map, rows.full, x, y + first)

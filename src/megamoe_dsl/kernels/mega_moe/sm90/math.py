"""The math warpgroups of SM90: wgmma with FP32 promotion, both epilogues, then combine.

waits     work_tile_full, per tile; full, per stage; counts, once.  What dispatch wrote for a tile's tokens, the token loader of this CTA
          has acquired before it arrived on the tile's first full; for Linear2 from those who had acquired it for Linear1
signals   work_tile_empty and empty, per warp, per tile and per stage; see the tile functions for the rest

A warpgroup has half of the tile, half of the weight rows (tokens_as_n.py, and tokens_as_m.py where a tile has few tokens) or half of the
tokens (tokens_as_m.py), and multiplies it in one or two pieces.  A 128-K partial sum of a piece lands in a temporary accumulator and is
then scaled and added in FP32 (the tensor core keeps about 14 bits); meanwhile the other warpgroup's wgmmas run.  The wait for the next
stage happens while the last piece is still in the tensor core.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....device.mbarrier import wait
from ....device.memory import fence_async_shared, load_f32
from ....device.ring import Ring
from ....device.warp import named_barrier, shuffle_f32
from ....layouts.arith import select
from ....schedule import FC1
from ..combine import combine_tokens
from ..layouts.named_barrier import NamedBarrier
from ..layouts.trace import Activity, Role
from ..layouts.workspace import RankBarrier
from ..rank_barrier import Group, rank_barrier
from ..trace import begin, detail_of, stamp
from . import tokens_as_m, tokens_as_n
from .config import Sm90Config
from .context import MATH_THREADS, MathThread, Sm90Context, is_half_tile
from .smem_plan import WORK_TILES
from .tile_scheduler import WorkTile, next_tile
from .tokens_as_m import TileShare


@dataclass(frozen=True)
class WeightScales:
    """Two scales per K block: lane l holds K blocks l, l + 32, ...

    Linear1: gate and up.  Linear2: the tile's first and last 128 rows, or twice those of a warpgroup that has its own.
    """

    values: tuple[tuple[Float32, ...], ...]
    is_fc1: cutlass.Boolean

    def at(self, k: Any) -> list[Any]:
        """Scales of K block k."""
        out = []
        for parts in self.values:
            value = parts[0]
            for i, part in enumerate(parts[1:]):
                value = Float32(cutlass.select_(k >= 32 * (i + 1), part, value))
            out.append(shuffle_f32(value, k & 31))
        return out


def tile_order(config: Sm90Config) -> ModuleType:
    """The module that computes tiles the way the configuration asks for."""
    return tokens_as_n if config.swap_ab else tokens_as_m


@cute.jit
def math(ctx: Sm90Context, warp: Int32):
    """All math warps; `warp` counts within them and is uniform, which keeps descriptors in uniform registers."""
    config = ctx.config
    me = MathThread(warp >> 2, warp & 3, cute.arch.lane_idx())
    begin(ctx, Role.MATH)
    tile, places = next_tile(ctx, Ring.start(WORK_TILES))
    stamp(ctx, Activity.WAIT_COUNTS)
    ring = Ring.start(config.num_stages)
    stores = Ring.start(1)
    while tile.valid():
        if cutlass.const_expr(config.swap_ab):
            ring, stores = compute(ctx, tile, me, ring, stores)
        else:
            if is_half_tile(ctx, tile):
                ring, stores = compute(ctx, tile, TileShare.of(me, half=True), ring, stores)
            else:
                ring, stores = compute(ctx, tile, TileShare.of(me, half=False), ring, stores)
        tile, places = next_tile(ctx, places)

    # Past the barrier the counts may be cleaned: this CTA's scheduler warp, whose tiles may be another CTA's doing, has read them.
    wait(ctx.barrier("counts"), Int32(0))
    rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, MATH_THREADS, warp * 32 + me.lane), RankBarrier.BEFORE_COMBINE)
    stamp(ctx, Activity.WAIT_RANKS)
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, config.num_threads - 128)
    stamp(ctx, Activity.WAIT_RESULTS)
    combine_tokens(ctx, warp, me.lane)
    stamp(ctx, Activity.COMBINE)


@cute.jit
def compute(ctx: Sm90Context, tile: WorkTile, me: MathThread, ring: Ring, stores: Ring) -> tuple[Ring, Ring]:
    """A warpgroup's half of a tile.  The ring's next stage, and the phase of the staging buffer."""
    config = ctx.config
    scales = weight_scales(ctx, tile, me)
    acc = tile_order(config).Accumulator.zero(config, me)
    wait(ctx.barrier("full", ring.index), ring.phase)
    stamp(ctx, Activity.WAIT_STAGE, detail_of(tile))
    k_blocks = select(tile.phase == FC1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks))
    for k in cutlass.range(k_blocks, unroll=1):
        acc, ring = tile_order(config).multiply(ctx, me, acc, scales, ring, k, k + 1 < k_blocks)
    stamp(ctx, Activity.MULTIPLY, detail_of(tile))
    # The staging buffer belongs to the store warp until it has read the last Linear1 tile.
    wait(ctx.barrier("store_empty"), stores.phase ^ 1)
    stamp(ctx, Activity.WAIT_STORE, detail_of(tile))
    if tile.phase == FC1:
        tile_order(config).finish_fc1(ctx, tile, me, acc.parts)
        stores = stores.next()
    else:
        tile_order(config).finish_fc2(ctx, tile, me, acc.parts)
    stamp(ctx, Activity.EPILOGUE, detail_of(tile))
    return ring, stores


@cute.jit
def weight_scales(ctx: Sm90Context, tile: WorkTile, me: MathThread) -> WeightScales:
    """Loaded once per tile by the lanes; a load per K block would put a wait before every wgmma wait."""
    config, problem = ctx.config, ctx.config.problem
    is_fc1 = tile.phase == FC1
    k_blocks = select(is_fc1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks))
    row_blocks = select(is_fc1, Int32(2 * problem.intermediate // 128), Int32(problem.hidden // 128))
    up = problem.intermediate // 128  # from a gate block to its up block
    own = me.group if me.has_own_weights else 0
    first = tile.expert * row_blocks + select(is_fc1, tile.n_block, tile.n_block * 2 + own)
    base = Int64(cutlass.select_(is_fc1, ctx.args.fc1_sf, ctx.args.fc2_sf))
    starts = range(0, max(config.fc1_k_blocks, config.fc2_k_blocks), 32)
    rows = (first, first + select(is_fc1, Int32(up), Int32(0 if me.has_own_weights else 1)))
    values = [[load_f32(base + Int64(r * k_blocks + cutlass.min(me.lane + s, k_blocks - 1)) * 4) for s in starts] for r in rows]
    return WeightScales(tuple(tuple(parts) for parts in values), is_fc1)

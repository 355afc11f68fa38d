"""The MMA warp of the even CTA, which fills the accumulators in turn; the K loop is a block (blocks/sm100/mma.py).

waits     work_tile_full and acc_empty, per tile; full, per stage
signals   work_tile_empty, per tile; empty of both CTAs, per stage; acc_full of both CTAs, per tile
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from ....device import tcgen05
from ....device.mbarrier import wait
from ....device.ring import Ring
from ....device.warp import elect
from ....layouts.records import Activity, Role
from ....schedule.fused_moe import mma_tokens
from ...sm100.mma import PairTile, ScaleColumns, multiply
from ..context import GemmContext, GemmTile, next_tile

ROWS_PER_COLUMN = 32  # of A, whose scales share a column of tensor memory


@cute.jit
def issue_mma(ctx: GemmContext):
    """Runs in all lanes; one lane issues."""
    ctx.begin(Role.MMA)
    tile, tiles = next_tile(ctx.first_tile)
    stage, acc = ctx.first_stage, Ring.start(ctx.config.tmem.accumulators)
    while tile.valid():
        wait(ctx.barrier("acc_empty", acc.index), acc.phase ^ 1)
        tcgen05.fence_after_sync()
        ctx.stamp(Activity.WAIT_STAGE, tile)
        stage = multiply(stage, pair_tile(ctx, tile, acc), Int32(ctx.config.k_blocks))
        if elect():
            tcgen05.commit_pair(ctx.barrier("acc_full", acc.index), ctx.own_pair)
        ctx.stamp(Activity.MULTIPLY, tile)
        acc = acc.next()
        tile, tiles = next_tile(tiles)


def pair_tile(ctx: GemmContext, tile: GemmTile, acc: Ring) -> Any:
    """The tile as tensor cores see it."""
    config, tmem = ctx.config, ctx.config.tmem
    instruction = tcgen05.instruction(config.mma, mma_tokens(tile.valid_m))
    kind = (config.mma, config.k_block)
    sums = (config.consumers, config.block_m)
    if not tmem.scaled:
        return PairTile(tmem.accumulator(acc.index), instruction, 0, *kind, None, *sums)
    first_scale = ctx.config.rows.row_in_atom(tile.row) // ROWS_PER_COLUMN
    scales = ScaleColumns(tmem.sfa, tmem.sfb, config.stage.sfa_atoms)
    return PairTile(tmem.accumulator(acc.index), instruction, first_scale, *kind, scales, *sums)

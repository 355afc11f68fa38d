"""The MMA warp of the even CTA, which fills the two accumulators in turn; the K loop is a block (blocks/sm100/mma.py).

waits     work_tile_full and acc_empty, per tile; full, per stage
signals   work_tile_empty, per tile; empty of both CTAs, per stage; acc_full of both CTAs, per tile
"""

from __future__ import annotations

import cutlass.cute as cute

from ....blocks.sm100.mma import PairTile, ScaleColumns, multiply
from ....blocks.sm100.tmem_plan import ACCUMULATORS
from ....device import tcgen05
from ....device.mbarrier import wait
from ....device.ring import Ring
from ....device.stamps import begin, detail_of, stamp
from ....device.warp import elect
from ....layouts.records import Activity, Role
from ..context import Context
from ..tile_scheduler import next_tile, read_ends


@cute.jit
def issue_mma(ctx: Context):
    """Runs in all lanes; one lane issues."""
    config, tmem = ctx.config, ctx.config.tmem
    columns = ScaleColumns(tmem.sfa, tmem.sfb, config.smem.stage.sfa_atoms)
    begin(ctx, Role.MMA)
    block, tiles = next_tile(ctx.first_tile)
    stamp(ctx, Activity.WAIT_COUNTS)
    stage, acc = ctx.first_stage, Ring.start(ACCUMULATORS)
    while block.valid():
        wait(ctx.barrier("acc_empty", acc.index), acc.phase ^ 1)
        stamp(ctx, Activity.WAIT_STAGE, detail_of(block))
        tcgen05.fence_after_sync()
        accumulator = acc.index * config.block_m
        tile = PairTile(accumulator, tcgen05.instruction(config.mma, block.mma_n), 0, config.mma, config.k_block, columns)
        stage = multiply(stage, tile, ctx.k_blocks(block))
        if elect():
            tcgen05.commit_pair(ctx.barrier("acc_full", acc.index))
        stamp(ctx, Activity.MULTIPLY, detail_of(block))
        acc = acc.next()
        block, tiles = next_tile(tiles)
    read_ends(ctx, tiles)

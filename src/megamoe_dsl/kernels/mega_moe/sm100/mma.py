"""The MMA warp of the even CTA: scales to TMEM, four MMAs per K block, accumulators in turn (article 4.4).

waits     acc_empty, per tile; full, per stage
signals   empty of both CTAs, per stage; acc_full of both CTAs, per tile

Swap-AB: the weights are the MMA's A (256 rows over the pair), the tokens its N, which follows the number of valid tokens.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....blocks.walk import next_block
from ....device import tcgen05
from ....device.mbarrier import wait
from ....device.ring import Ring
from ....device.warp import elect
from ....hardware.scale_factors import SF_ATOM_BYTES
from ....layouts.arith import select
from ....schedule import FC1
from ..table import start_walk
from .context import Sm100Context
from .tile import ACCUMULATORS


@cute.jit
def issue_mma(ctx: Sm100Context):
    """Runs in all lanes; one lane issues."""
    config, tmem = ctx.config, ctx.config.tmem
    atoms = config.smem.sfa_atoms
    blocks = start_walk(ctx, Int32(0), 1)
    ring, acc = Ring.start(config.num_stages), Ring.start(ACCUMULATORS)
    while blocks.valid():
        wait(ctx.barrier("acc_empty", acc.index), acc.phase ^ 1)
        tcgen05.fence_after_sync()
        accumulator = acc.index * config.block_m
        block = blocks.block()
        instruction = tcgen05.instruction(block.mma_n)
        for k in cutlass.range(select(block.phase == FC1, Int32(config.fc1_k_blocks), Int32(config.fc2_k_blocks)), unroll=1):
            wait(ctx.barrier("full", ring.index), ring.phase)
            tcgen05.fence_after_sync()
            if elect():
                sfb = ctx.shared("sfb", ring.index) >> 4
                tcgen05.copy_scales(tmem.sfb, tcgen05.descriptor(sfb, tcgen05.SCALE_HIGH))
                sfa = ctx.shared("sfa", ring.index) >> 4
                for atom in cutlass.range_constexpr(atoms):
                    source = tcgen05.descriptor(sfa + atom * (SF_ATOM_BYTES >> 4), tcgen05.SCALE_HIGH)
                    tcgen05.copy_scales(tmem.sfa + 4 * atom, source)
                weights, tokens = ctx.shared("weights", ring.index) >> 4, ctx.shared("tokens", ring.index) >> 4
                for step in cutlass.range_constexpr(tcgen05.STEPS):
                    tcgen05.mma(
                        accumulator,
                        tcgen05.descriptor(weights + step * tcgen05.K_STEP, tcgen05.OPERAND_HIGH),
                        tcgen05.descriptor(tokens + step * tcgen05.K_STEP, tcgen05.OPERAND_HIGH),
                        tcgen05.with_scale_step(instruction, step),
                        tmem.sfb,
                        tmem.sfa,
                        Int32(1) if step else select(k == 0, Int32(0), Int32(1)),
                    )
                tcgen05.commit_pair(ctx.barrier("empty", ring.index))
            ring = ring.next()
        if elect():
            tcgen05.commit_pair(ctx.barrier("acc_full", acc.index))
        acc = acc.next()
        blocks = next_block(blocks)

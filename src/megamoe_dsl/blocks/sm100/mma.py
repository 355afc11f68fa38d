"""The K loop of a tile on the MMA warp of an SM100 pair's even CTA: scales to TMEM, four MMAs per K block (article 4.4).

waits     full, per stage
signals   empty of both CTAs, per stage

Swap-AB: the weights are the MMA's A (256 rows over the pair).  The tokens are its N, which is no larger than the valid tokens need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import tcgen05
from ...device.stage import Stage
from ...device.warp import elect
from ...hardware.scale_factors import SF_ATOM_BYTES
from ...layouts.arith import select


@dataclass(frozen=True)
class ScaleColumns:
    """Where a stage's scales lie in TMEM: the tokens' from column `sfa` on, in `atoms` of 128 rows; the weights' from `sfb` on."""

    sfa: int
    sfb: int
    atoms: int


@dataclass(frozen=True)
class PairTile:
    """A tile on the tensor cores: `accumulator` is the first TMEM column of its sums, `instruction` the descriptor for its number of
    tokens."""

    accumulator: Int32
    instruction: Any
    scales: cutlass.Constexpr[ScaleColumns]


@cute.jit
def multiply(stage: Stage, tile: PairTile, k_blocks: Int32):
    """Runs in all lanes; one lane issues.  Returns the stage after the last of `k_blocks`."""
    columns = tile.scales
    for k in cutlass.range(k_blocks, unroll=1):
        stage.wait_full()
        tcgen05.fence_after_sync()
        if elect():
            sfb = stage.shared("sfb") >> 4
            tcgen05.copy_scales(columns.sfb, tcgen05.descriptor(sfb, tcgen05.SCALE_HIGH))
            sfa = stage.shared("sfa") >> 4
            for atom in cutlass.range_constexpr(columns.atoms):
                source = tcgen05.descriptor(sfa + atom * (SF_ATOM_BYTES >> 4), tcgen05.SCALE_HIGH)
                tcgen05.copy_scales(columns.sfa + 4 * atom, source)
            weights, tokens = stage.shared("weights") >> 4, stage.shared("tokens") >> 4
            for step in cutlass.range_constexpr(tcgen05.STEPS):
                tcgen05.mma(
                    tile.accumulator,
                    tcgen05.descriptor(weights + step * tcgen05.K_STEP, tcgen05.OPERAND_HIGH),
                    tcgen05.descriptor(tokens + step * tcgen05.K_STEP, tcgen05.OPERAND_HIGH),
                    tcgen05.with_scale_step(tile.instruction, step),
                    columns.sfb,
                    columns.sfa,
                    Int32(1) if step else select(k == 0, Int32(0), Int32(1)),
                )
            tcgen05.commit_pair(stage.empty)
        stage = stage.next()
    return stage

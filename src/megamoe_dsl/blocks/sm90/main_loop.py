"""The K loop of a tile on the math warps of SM90: FP8 wgmma with FP32 promotion every 128 of K.

waits     full, per stage
signals   empty, per warp and stage

A warpgroup computes half of the tile, in one or two parts: half of the weight rows (tokens_as_n.py, and half tiles in tokens_as_m.py), or
half of the tokens (whole tiles in tokens_as_m.py).  The sum of a part over 128 of K is computed in a temporary accumulator, then scaled and
added in FP32, because the tensor core keeps about 14 bits; meanwhile the wgmmas of the other warpgroup run.  The wait for the next stage
happens while the last part is still in the tensor core.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device.stage import Stage
from .tokens_as_m import RowShare
from .tokens_as_n import ColumnShare
from .weight_scales import WeightScales

Share = RowShare | ColumnShare


@cute.jit
def multiply_tile(stage: Stage, me: Share, scales: WeightScales, k_blocks: Int32):
    """Multiplies `k_blocks` > 0 stages; the first must be full.  Returns the sums, one tuple for each part of the share, and the stage
    after the last."""
    acc = me.zero()
    for k in cutlass.range(k_blocks, unroll=1):
        acc, stage = me.multiply(stage, acc, scales, k, k + 1 < k_blocks)
    return acc.parts, stage

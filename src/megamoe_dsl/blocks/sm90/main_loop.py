"""The K loop of a tile on the math warps of SM90: FP8 wgmma with FP32 promotion every 128 of K.

waits     full, per stage
signals   empty, per warp and stage

A warpgroup has half of the tile, half of the weight rows (tokens_as_n.py, and tokens_as_m.py where a tile has few tokens) or half of the
tokens (tokens_as_m.py), and multiplies it in one or two parts.  A 128-K partial sum of a part lands in a temporary accumulator and is
then scaled and added in FP32 (the tensor core keeps about 14 bits); meanwhile the other warpgroup's wgmmas run.  The wait for the next
stage happens while the last part is still in the tensor core.
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
    """`k_blocks` > 0 stages, the first of them full.  Returns the sums, part by part as the share says, and the stage after the last."""
    acc = me.zero()
    for k in cutlass.range(k_blocks, unroll=1):
        acc, stage = me.multiply(stage, acc, scales, k, k + 1 < k_blocks)
    return acc.parts, stage

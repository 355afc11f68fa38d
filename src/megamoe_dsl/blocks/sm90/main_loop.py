"""The K loop of a tile on the math warps of SM90: FP8 wgmma with FP32 promotion every 128 of K.

waits     full, per stage
signals   empty, per warp and stage

A warpgroup computes half of the tile, in one or two parts: half of the weight rows (tokens_as_n.py, and half tiles in tokens_as_m.py), or
half of the tokens (whole tiles in tokens_as_m.py).  The sum of a part over 128 of K is computed in a temporary accumulator, then scaled and
added in FP32, because the tensor core keeps about 14 bits; meanwhile the wgmmas of the other warpgroup run.  The wait for the next stage
happens while the last part is still in the tensor core.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.ring import Stage, release_stage
from .math_thread import WeightScales
from .tokens_as_m import RowShare
from .tokens_as_n import ColumnShare

Share = RowShare | ColumnShare


@cute.jit
def multiply_ahead(stage: Stage, me: Share, scales: WeightScales, k_blocks: Int32, ahead: cutlass.Constexpr[int]):
    """The same for a share of one part, with the partial sums of up to `ahead` K blocks in the tensor core at a time, each in registers of
    its own: for tiles so narrow that a K block takes as long as its latency.  Waits for the first stage, too."""
    acc, partials = me.zero().parts, (me.zero().partial,) * ahead
    whole = k_blocks - k_blocks % ahead
    for k in cutlass.range(0, whole, ahead, unroll=1):
        acc, partials, stage = multiply_some(stage, me, acc, partials, scales, k, ahead)
    for k in cutlass.range(whole, k_blocks, 1, unroll=1):
        acc, partials, stage = multiply_some(stage, me, acc, partials, scales, k, 1)
    return acc, stage


@cute.jit
def multiply_some(stage: Stage, me: Share, acc: Any, partials: Any, scales: WeightScales, k: Int32, count: cutlass.Constexpr[int]):
    """`count` K blocks: all are issued, then one after the other is waited for, added and released."""
    stages, started, token_scales, row_scales = [], [], [], []
    for i in cutlass.range_constexpr(count):
        stage.wait_full()
        started.append(wgmma.issue(*me.operands(stage), partials[i]))
        token_scales.append(me.token_scales(stage))
        row_scales.append(scales.at(k + i))
        stages.append(stage)
        stage = stage.next()
    sums, done = acc[0], []
    for i in cutlass.range_constexpr(count):
        partial = wgmma.wait(started[i], count - 1 - i)
        sums = me.promote(sums, partial, token_scales[i], row_scales[i])
        release_stage(stages[i], me.lane)
        done.append(partial)
    return (sums,), (*done, *partials[count:]), stage


@cute.jit
def accumulate_tile(stage: Stage, me: Share, k_blocks: Int32, element: cutlass.Constexpr[str]):
    """Multiplies `k_blocks` > 0 stages, rows of `element`, whose operands have no scales: all of K adds up in the tensor core.  Returns the
    sums, one tuple for each part of the share, and the stage after the last.

    The wgmmas of a K block are in the tensor core when those of the next are issued; a stage is given back once the next one's have been,
    when its own are done."""
    parts = me.zero().parts
    stage.wait_full()
    sums, stage = issue_block(stage, me, parts, element, accumulate=False), stage.next()
    for _ in cutlass.range(k_blocks - 1, unroll=1):
        stage.wait_full()
        sums = issue_block(stage, me, sums, element)
        sums = wait_block(sums, len(parts))
        release_stage(stage.previous(), me.lane)
        stage = stage.next()
    sums = wait_block(sums, 0)
    release_stage(stage.previous(), me.lane)
    return sums, stage


def issue_block(stage: Stage, me: Share, sums: Any, element: str, accumulate: bool = True) -> tuple[tuple[Any, ...], ...]:
    """Starts a K block of every part, each a group of its own."""
    return tuple(wgmma.issue(*me.operands(stage, i), part, accumulate, element, me.mn_major) for i, part in enumerate(sums))


def wait_block(sums: Any, pending: int) -> tuple[tuple[Any, ...], ...]:
    """Until all groups but the last `pending` are done; the sums, which are ready when none is pending."""
    values, size = wgmma.wait([one for part in sums for one in part], pending), len(sums[0])
    return tuple(values[first : first + size] for first in range(0, len(values), size))

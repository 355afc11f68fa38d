"""The K loop of a tile whose operands have no scales: all of K adds up in the tensor core, in the accumulators of a share's parts.

waits     full, per stage
signals   empty, per warp and stage

The wgmmas of a K block are in the tensor core when those of the next are issued; a stage is given back once the next one's have been, when
its own are done.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.stage import Stage, release_stage
from .main_loop import Share


@cute.jit
def accumulate_tile(stage: Stage, me: Share, k_blocks: Int32, element: cutlass.Constexpr[str]):
    """Multiplies `k_blocks` > 0 stages, rows of `element`.  Returns the sums, one tuple for each part of the share, and the stage after the
    last."""
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
    return tuple(wgmma.issue(*me.operands(stage, i), part, accumulate, element) for i, part in enumerate(sums))


def wait_block(sums: Any, pending: int) -> tuple[tuple[Any, ...], ...]:
    """Until all groups but the last `pending` are done; the sums, which are ready when none is pending."""
    values, size = wgmma.wait([one for part in sums for one in part], pending), len(sums[0])
    return tuple(values[first : first + size] for first in range(0, len(values), size))

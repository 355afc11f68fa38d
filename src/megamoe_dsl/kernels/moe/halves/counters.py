"""Counters of which a launch uses one set and clears the other, which the next launch uses."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from ....blocks.rank_barrier import Group
from ....device.memory import store_u32
from .context import EpContext


@cute.jit
def clear_counters(ctx: EpContext, group: Group, name: cutlass.Constexpr[str], count: cutlass.Constexpr[int]):
    """The first `count` of the next launch, by all communication warps."""
    for index in cutlass.range(ctx.sm * group.size + group.thread, count, ctx.num_sms * group.size, unroll=1):
        store_u32(ctx.at(name, 1 - (ctx.epoch & 1), index), 0)

"""The end of a launch: nobody reads this rank's memory any more, or writes it, so its owner may write it.

The counters of the next launch are cleared here too: a launch uses one set and clears the other.

waits     READ
signals   READ, when the CTAs of this rank have read what they need of others
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from ....blocks.rank_barrier import Group, arrive, await_ranks, collect, signal
from ....device.memory import store_u32
from .context import EpContext
from .layouts.symmetric import EpBarrier


@cute.jit
def end_launch(ctx: EpContext, group: Group):
    """All communication warps.  SM 0 alone waits for the other ranks, and counts the launch."""
    arrive(ctx, group, EpBarrier.READ)
    if ctx.sm == 0:
        collect(ctx, group, EpBarrier.READ, ctx.epoch + 1)
        if group.thread == 0:
            store_u32(ctx.at("task_counter"), 0)
        signal(ctx, group, EpBarrier.READ)
        await_ranks(ctx, group, EpBarrier.READ, ctx.epoch + 1)
        if group.thread == 0:
            store_u32(ctx.at("launch_epoch"), ctx.epoch + 1)


@cute.jit
def clear_counters(ctx: EpContext, group: Group, name: cutlass.Constexpr[str], count: cutlass.Constexpr[int]):
    """The first `count` of the next launch, by all communication warps."""
    for index in cutlass.range(ctx.sm * group.size + group.thread, count, ctx.num_sms * group.size, unroll=1):
        store_u32(ctx.at(name, 1 - (ctx.epoch & 1), index), 0)

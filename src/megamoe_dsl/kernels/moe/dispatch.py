"""The dispatch warps, in three parts: exchange counts (exchange_counts.py), pull tokens (pull.py), clean the workspace (clean.py).

waits     counts, once; DISPATCH_EPILOGUE: all ranks have passed BEFORE_COMBINE
signals   DISPATCH_EPILOGUE: the SMEM of dispatch is free for combine
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32

from ...blocks.rank_barrier import Group
from ...blocks.trace import begin, stamp
from ...device.mbarrier import wait
from ...device.memory import fence_async_shared
from ...device.warp import named_barrier
from ...layouts.activity import Activity, Role
from .clean import clean_workspace
from .context import Context
from .exchange_counts import exchange_counts
from .layouts.tile import NamedBarrier
from .pull import pull_tokens


@cute.jit
def dispatch(ctx: Context, thread: Int32):
    """Runs one thread of the dispatch warps from counts to cleaning."""
    group = Group(NamedBarrier.DISPATCH, 32 * ctx.config.dispatch_warps, thread)
    begin(ctx, Role.DISPATCH)
    exchange_counts(ctx, group)
    stamp(ctx, Activity.COUNT)
    # Counts from a rank say two things.  Its indices are here, because it sent them first.  And it has started this launch: its inputs are
    # the new ones, and it no longer reads the combine rows of the launch before.
    wait(ctx.barrier("counts"), Int32(0))
    stamp(ctx, Activity.WAIT_COUNTS)
    pull_tokens(ctx, thread >> 5)
    stamp(ctx, Activity.PULL)
    # Combine's TMA loads will overwrite the SMEM that dispatch has used: those are writes through the async proxy.
    fence_async_shared()
    named_barrier(NamedBarrier.DISPATCH_EPILOGUE, ctx.config.dispatch_epilogue_threads)
    stamp(ctx, Activity.WAIT_RESULTS)
    clean_workspace(ctx, group)
    stamp(ctx, Activity.CLEAN)

"""The table of a CTA that says where each group's rows lie (packed, aligned and masked problems), and how the scheduler warp fills it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...device.memory import load_relaxed_u32, load_shared_u32, load_u32, store_shared_v2
from ...device.warp import sync_warp
from ...layouts.arith import div
from .context import GemmContext
from .problem import ALIGNED, MASKED, ROW_BLOCK


@dataclass(frozen=True)
class GroupTable:
    """In SMEM: (rows, first row) of each group, then an entry without rows."""

    address: Int32

    def tokens(self, expert: Any) -> Any:
        return load_shared_u32(self.address + expert * 8)

    def first_row(self, expert: Any) -> Any:
        """Row of A that a group's rows start at."""
        return load_shared_u32(self.address + expert * 8 + 4)

    def first_block(self, expert: Any) -> Any:
        """Not asked for: rows are counted, not blocks."""
        return 0


@cute.jit
def fill_table(ctx: GemmContext):
    """The scheduler warp: lane l for groups l, l + 32, ...  What a bad table would say is cut to the rows that are there."""
    config, lane = ctx.config, cute.arch.lane_idx()
    # Before it waits a launch may run where an older launch of the same kernels has left an older table in L1.
    load = load_relaxed_u32 if config.prefetch_weights else load_u32
    count = config.problem.num_groups
    room = div(ctx.args.m, count)  # of a group of a masked problem
    for base in cutlass.range_constexpr(0, count + 1, 32):
        group = lane + base
        if group <= count:
            rows, first = Int32(0), Int32(0)
            if group < count:
                entry = ctx.args.groups + Int64(group) * 4
                if cutlass.const_expr(config.problem.kind == MASKED):
                    rows, first = cutlass.min(load(entry), room), group * room
                else:
                    if group > 0:
                        first = cutlass.max(cutlass.min(load(entry - 4), ctx.args.m), Int32(0))
                    if cutlass.const_expr(config.problem.kind == ALIGNED):
                        first = div(first + (ROW_BLOCK - 1), ROW_BLOCK) * ROW_BLOCK
                    rows = cutlass.min(load(entry), ctx.args.m) - first
            store_shared_v2(ctx.shared("group_table", group), cutlass.max(rows, Int32(0)), first)
    sync_warp()

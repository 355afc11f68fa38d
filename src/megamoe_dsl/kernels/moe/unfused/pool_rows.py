"""A grid's warps over the received tokens, each token in as many parts as its row is cut into."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....device.mbarrier import wait
from ....layouts.arith import div
from ..pull import Cursor, advance_to_valid
from ..table import SharedTable
from .context import StageContext


@dataclass(frozen=True)
class PartTable(SharedTable):
    """The table of experts where every token counts as `parts`."""

    parts: cutlass.Constexpr[int]

    def tokens(self, expert: Any) -> Any:
        """Parts of all tokens that a local expert received."""
        return SharedTable.tokens(self, expert) * self.parts


@cute.jit
def first_part(ctx: StageContext, warp: Int32, parts: cutlass.Constexpr[int]) -> Cursor:
    """Waits for the table.  A warp's first part."""
    wait(ctx.barrier("counts"), Int32(0))
    table = PartTable(ctx.shared("expert_table"), parts)
    # Consecutive parts go to different CTAs, so that all have work when there are few tokens.
    cursor = Cursor(table, Int32(0), ctx.sm + warp * ctx.config.num_sms, table.tokens(Int32(0)))
    return advance_to_valid(cursor, ctx.config.problem.experts_per_rank)


@cute.jit
def next_part(ctx: StageContext, cursor: Cursor, warps: cutlass.Constexpr[int]) -> Cursor:
    """The next part of one of a CTA's `warps` warps; its expert is `experts_per_rank` when there is none."""
    following = dataclasses.replace(cursor, index=cursor.index + ctx.config.num_sms * warps)
    return advance_to_valid(following, ctx.config.problem.experts_per_rank)


def place(ctx: StageContext, cursor: Cursor, parts: int) -> tuple[Any, Any]:
    """Pool row and number of the part."""
    token = div(cursor.index, parts)
    return cursor.table.first_block(cursor.expert) * ctx.config.block_m + token, cursor.index - token * parts

"""The rows of this rank's experts in groups of 32, a lane each, through which warps go in ascending order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from ....device.memory import load_u32
from ....layouts.arith import ceil_div, minimum
from .context import EpContext
from .layouts.symmetric import padded_rows

LANES = 32


@dataclass(frozen=True)
class RowGroups:
    """Those of an expert: it has `rows` from row `first` on, and its first group has this number."""

    expert: Int32
    first: Int32
    rows: Int32
    number: Int32

    @property
    def behind(self) -> Any:
        """Number of the first group of the next expert."""
        return self.number + ceil_div(self.rows, LANES)

    def row(self, number: Any) -> Any:
        """First row of one of them."""
        return self.first + (number - self.number) * LANES

    def count(self, number: Any) -> Any:
        """Rows of one of them."""
        return minimum(self.rows - (number - self.number) * LANES, LANES)


def rows_of(ctx: EpContext, expert: Any) -> Any:
    """Rows of a local expert."""
    return load_u32(ctx.at("expert_rows", expert))


def first_groups(ctx: EpContext) -> RowGroups:
    return RowGroups(Int32(0), Int32(0), rows_of(ctx, 0), Int32(0))


@cute.jit
def advance_to(ctx: EpContext, groups: RowGroups, number: Int32) -> RowGroups:
    """The expert, this one or a later one, that has the group with this number; past the last expert if there is none."""
    local = ctx.config.problem.experts_per_rank
    while (groups.expert < local) & (number >= groups.behind):
        rows = rows_of(ctx, minimum(groups.expert + 1, local - 1))
        groups = RowGroups(groups.expert + 1, groups.first + padded_rows(groups.rows), rows, groups.behind)
    return groups

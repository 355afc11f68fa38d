"""The order of a launch that has tasks beside the tiles of a grouped GEMM: some before them, and some after.

One sequence numbers them all, so one counter hands them out.  A task waits only for lower numbers, of this rank or another one: whichever
CTA takes which numbers, the lowest number that is not done waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..layouts.arith import Int, minimum, select
from .grouped import GroupedBlock, GroupedOrder
from .order import OneSize


class TaskKind(IntEnum):
    """What a number stands for; BEFORE and AFTER are work of the kernel's own."""

    BEFORE = 0
    TILE = 1
    AFTER = 2


@dataclass(frozen=True)
class Task:
    """One number of the sequence: the `index`-th task of its kind, or the tile `block`."""

    kind: Int
    index: Int
    block: GroupedBlock


@dataclass(frozen=True)
class TaskOrder:
    """`before` tasks, the tiles of each expert of the table, and `after` tasks: a step each."""

    config: Any  # GroupedPlan; cutlass.Constexpr in a kernel
    table: Any  # ExpertTable
    before: Int
    after: Int

    @property
    def tiles(self) -> GroupedOrder:
        """The order of the tiles."""
        return GroupedOrder(self.config, self.table)

    @property
    def last(self) -> int:
        """The step of the tasks after all tiles."""
        return self.config.num_experts + 1

    def has(self, step: Int, sizes: OneSize) -> Any:
        """Whether there is such a step."""
        return step <= self.last

    def first_sizes(self, zero: Int) -> OneSize:
        """Of the tasks before all tiles."""
        return self.sizes(zero)

    def part(self, step: Int, before: OneSize) -> Int:
        """The step itself."""
        return step

    def sizes(self, part: Int) -> OneSize:
        """Tasks of a step; none past the last."""
        tiles = self.tiles.sizes(self.expert(part)).total
        others = select(part == 0, self.before, select(part == self.last, self.after, 0))
        return OneSize(tiles + others)

    def expert(self, step: Int) -> Int:
        """Whose tiles a step has; the entry past the last expert, which has none, for the others."""
        none = self.config.num_experts
        return minimum(select(step == 0, none, step - 1), none)

    def block(self, step: Int, local: Int, sizes: OneSize) -> Task:
        """The task, or the tile, with this number in its step."""
        kind = select(step == 0, int(TaskKind.BEFORE), select(step == self.last, int(TaskKind.AFTER), int(TaskKind.TILE)))
        return Task(kind, local, self.tiles.block(self.expert(step), local, sizes))

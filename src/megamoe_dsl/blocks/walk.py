"""The scheduler in a kernel (schedule/scheduler.py): the same object on traced integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..layouts.arith import div
from ..schedule.scheduler import Scheduler


@dataclass(frozen=True)
class Walk(Scheduler):
    """A scheduler whose order is a kernel's: a frozen dataclass that tells the DSL which of its fields are compile-time."""

    stride: cutlass.Constexpr[int]


@cute.jit
def advance_to_valid(walk: Walk) -> Walk:
    """As `Scheduler.advance_to_valid`, on traced integers."""
    while walk.invalid():
        walk = walk.advance()
    return walk


@cute.jit
def next_block(walk: Walk) -> Walk:
    """The walk at its next block, or past the last one."""
    return advance_to_valid(walk.skip())


def first_number(sm: Int32, config: Any) -> Int32:
    """Number of the first block that a cluster, whose first CTA is this one, takes before it fetches any."""
    return sm if config.blocks_per_fetch == config.cluster else div(sm, config.cluster) * config.blocks_per_fetch

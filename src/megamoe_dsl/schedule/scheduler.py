"""Walking the blocks of a kernel, whatever their order is (order.py), with the same code on the host and in a kernel.

All blocks of a launch are numbered in one sequence.  A cluster of CTAs takes numbers in ascending order: every `stride`-th number, if
clusters take turns, or the numbers that it fetches at run time.  A `Scheduler` is a position in the sequence: a step of the order, and a
block number within that step.  To move on, one adds to the block number.  If it then lies past the blocks of its step, the position is
*invalid*, and `advance` takes it to the next step, until it is valid.  So a walk costs a few integer operations per block, and no list of
blocks exists.

A scheduler is frozen and its state are plain integers.  Host: `Scheduler.blocks(order, first, stride)`.  Kernel: the same `start`,
`invalid`, `advance`, `skip` and `forward` on traced integers, with `advance_to_valid` as a traced loop (blocks/walk.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from ..layouts.arith import Int
from .order import Order, StepSizes


@dataclass(frozen=True)
class Scheduler:
    """Position of one walk in the sequence of blocks."""

    order: Order
    step: Int
    local: Int  # number of the block within the step
    sizes: StepSizes  # of the step
    stride: Int  # from one block of this walk to the next; compile-time in a kernel

    @classmethod
    def start(cls, order: Order, number: Int, stride: Int, integer: Any = int) -> Self:
        """The position, perhaps invalid, at block `number`.  `integer` is `Int32` in a kernel."""
        zero = integer(0)
        return cls(order, zero, number, order.first_sizes(zero), stride)

    # --- the current block
    def valid(self) -> Any:
        """Whether there is a block at this position, which must not be invalid: past the last block there is none."""
        return self.order.has(self.step, self.sizes)

    def block(self) -> Any:
        """The block at this position, which must not be invalid; past the last block, one that the order says is empty."""
        return self.order.block(self.step, self.local, self.sizes)

    # --- moving on
    def invalid(self) -> Any:
        """Whether the block number lies past the blocks of the step while steps remain."""
        return self.valid() & (self.local >= self.sizes.total)

    def advance(self) -> Self:
        step = self.step + 1
        part = self.order.part(step, self.sizes)
        return dataclasses.replace(self, step=step, local=self.local - self.sizes.total, sizes=self.order.sizes(part))

    def skip(self) -> Self:
        """The walk's next block, perhaps invalid."""
        return self.forward(self.stride)

    def forward(self, numbers: Int) -> Self:
        """The block number that is `numbers` higher, perhaps invalid."""
        return dataclasses.replace(self, local=self.local + numbers)

    # --- host iteration
    def advance_to_valid(self) -> Self:
        """The first position from here on that is not invalid."""
        position = self
        while position.invalid():
            position = position.advance()
        return position

    @classmethod
    def blocks(cls, order: Order, first: int = 0, stride: int = 1, at_a_time: int = 1) -> Iterator[Any]:
        """Blocks `first`, `first + stride`, ... in order, and with each the `at_a_time - 1` that follow it, which are of the same step."""
        position = cls.start(order, first, stride).advance_to_valid()
        while position.valid():
            yield from (position.forward(i).block() for i in range(at_a_time))
            position = position.skip().advance_to_valid()

"""Walking the blocks of a kernel, whatever their order is, with the same code on the host and in a kernel.

All blocks of a launch are numbered in one sequence.  A cluster takes numbers in ascending order: every `stride`-th, or those that it
fetches at run time.  A `Scheduler` is a position: a step of the order, and a block number within that step.  A position past the blocks of
its step is *invalid*; `advance` takes it to the next step.

Host: `Scheduler.blocks(order, first, stride)`.  Kernel: the same `start`, `invalid`, `advance`, `skip` and `forward` on traced integers,
with `advance_to_valid` as a traced loop (blocks/tiles.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from ..layouts.arith import Int, div, minimum, select


@dataclass(frozen=True)
class Scheduler:
    """Position in the sequence of blocks."""

    order: Order
    step: Int
    local: Int  # number of the block within the step
    sizes: Any  # of the step, `total` blocks, and what else the order computes once per step
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
        return self.forward(self.stride)

    def forward(self, numbers: Int) -> Self:
        return dataclasses.replace(self, local=self.local + numbers)

    # --- host iteration
    def advance_to_valid(self) -> Self:
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


@dataclass(frozen=True)
class OneSize:
    """Size of a step with one kind of blocks."""

    total: Int


class Order:
    """A sequence of blocks, made of steps that follow one another: an expert, say, or one phase of it.

    num_steps                  how many
    sizes(part)                of the step that consists of `part`, from the tables that the order reads; no blocks past the last step
    block(step, local, sizes)  number `local` within its step, whose sizes are given; also at the position past the last block

    Every method takes host integers or traced ones, so that one order serves the host and kernels.  `Scheduler` walks it.
    """

    num_steps: Any
    sizes: Any
    block: Any

    def has(self, step: Int, sizes: Any) -> Any:
        """Whether there is such a step, whose sizes are given, and not the end of the sequence."""
        return step < self.num_steps

    def first_sizes(self, zero: Int) -> Any:
        """Sizes of step 0; `zero` is the number 0 as the walk's kind of integer."""
        return self.sizes(zero)

    def part(self, step: Int, before: Any) -> Any:
        """What a step from 1 on consists of, the one past the last too, in the order's own terms: the index of an expert, say.  `before`
        are the sizes of the step before it, for an order that goes on from there.  Only arithmetic: no table is read here."""
        return step


def place_in_bands(number: Int, size: int, m_blocks: Int, n_blocks: Int, band: Int | None = None) -> tuple[Int, Int]:
    """(row block, column block) of a number among `m_blocks` by `n_blocks`: bands of up to `size` row blocks follow one another.  `band` is
    the number's, where `n_blocks` is no constant to divide by."""
    band = div(number, size * n_blocks) if band is None else band
    rest = number - band * (size * n_blocks)
    if size == 1:
        return band, rest
    row, n_block = there_and_back(rest, band_rows(band, size, m_blocks))
    return band * size + row, n_block


def band_rows(band: Int, size: int, m_blocks: Int) -> Int:
    """Row blocks of a band of up to `size`; 1 for a band past the last row, so that one can divide by it."""
    rows = minimum(m_blocks - band * size, size)
    return select(rows > 0, rows, 1)


def there_and_back(number: Int, rows: Int) -> tuple[Int, Int]:
    """(row block, column block) of a number in a band of `rows` row blocks.  The columns follow one another, and for each of them the rows,
    forwards and backwards in turn: of any two blocks that follow one another either the row or the column is the same."""
    column = div(number, rows)
    row = number - column * rows
    return select((column & 1) == 0, row, rows - 1 - row), column

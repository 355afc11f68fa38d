"""What a kernel says about its blocks of work: how many there are, and which one a number means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..layouts.arith import Int


class StepSizes(Protocol):
    """How many blocks a step has: `total`.  An order may keep more here that it computes once per step and needs for every block."""

    @property
    def total(self) -> Int: ...


@dataclass(frozen=True)
class OneSize:
    """The size of a step whose blocks are all of one kind."""

    total: Int


class Order(Protocol):
    """A sequence of blocks, made of steps that follow one another: an expert, say, or one phase of it.

    Every method takes host integers or traced ones, so that one order serves the host and kernels.  `Scheduler` walks it.
    """

    def has(self, step: Int, sizes: Any) -> Any:
        """Whether there is such a step, whose sizes are given, and not the end of the sequence."""
        ...

    def first_sizes(self, zero: Int) -> StepSizes:
        """Sizes of step 0; `zero` is the number 0 as the walk's kind of integer."""
        ...

    def part(self, step: Int, before: Any) -> Any:
        """What a step from 1 on consists of, the one past the last too, in the order's own terms: the index of an expert, say.  `before`
        are the sizes of the step before it, for an order that goes on from there.  Only arithmetic: no table is read here."""
        ...

    def sizes(self, part: Any) -> StepSizes:
        """Sizes of the step that consists of `part`, from the tables that the order reads; no blocks for the step past the last."""
        ...

    def block(self, step: Int, local: Int, sizes: Any) -> Any:
        """The block with number `local` within its step, whose sizes are given; also of the position past the last block."""
        ...

"""What a kernel says about its blocks of work: how many there are, and which one a number means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..layouts.arith import Int


class StepSizes(Protocol):
    """How many blocks a step has: `total`.  An order may keep more here that it computes once per step and needs for every block."""

    @property
    def total(self) -> Int:
        """Blocks of the step."""
        ...


@dataclass(frozen=True)
class OneSize:
    """The size of a step whose blocks are all of one kind."""

    total: Int


class Order(Protocol):
    """A sequence of blocks, made of `num_steps` steps that follow one another: an expert, say, or one phase of it.

    Every method takes host integers or traced ones, so that one order serves the host and kernels.  `Scheduler` walks it.
    """

    @property
    def num_steps(self) -> int:
        """Steps of the sequence."""
        ...

    def first_sizes(self, zero: Int) -> StepSizes:
        """Of step 0; `zero` is that number, of the walk's kind of integer."""
        ...

    def part(self, step: Int) -> Any:
        """What a step from 1 to `num_steps` consists of, in the order's own terms: the index of an expert, say.  Only arithmetic: no table
        is read here."""
        ...

    def sizes(self, part: Any) -> StepSizes:
        """Sizes of the step that consists of `part`, from the tables that the order reads; no blocks for step `num_steps`."""
        ...

    def block(self, step: Int, local: Int, sizes: Any) -> Any:
        """The block with number `local` within its step, whose sizes are given; also of the position past the last block."""
        ...

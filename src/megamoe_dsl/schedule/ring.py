"""The order of the fused MoE kernels' blocks when the token pool is a ring: rows are used again when their Linear2 is done.

Token blocks have places in the order of experts, 0, 1, 2 ...; place p takes the rows of place p - `ring_blocks`.  The sequence is made of
*bands*: up to `group_m` token blocks of one expert with all their weight blocks (`there_and_back`), as in the order without a ring.  A step
has the next band of Linear1, the next band of Linear2, or both, in alternating runs:

- Linear1, if with it no more than `window` places lie between the first that Linear2 has yet to come to and the last of Linear1's;
- Linear2, if the band of Linear1 does not fit, or is `lookahead` experts ahead, or if there is none left.  In each case Linear1 is past
  all of Linear2's band.

A launch whose blocks all fit in the ring has no window: its order is the one of a pool that holds everything.

No deadlock, whichever cluster takes which numbers.  A block waits for three things:

1. Linear2 of p for Linear1 of p, which comes in an earlier step.
2. Linear1 of p for dispatch of p: a warp of dispatch that waits for the rows of place p has done its tokens of lower places, and waits for
   Linear2 of p - `ring_blocks`.
3. Hence Linear1 of p for Linear2 of all places up to p - `ring_blocks`.  They come in earlier steps: in the step of Linear1 of p, the first
   place v of Linear2 that is not in an earlier step is above p - `window`, and `window` is at most `ring_blocks`.

So all waits are for lower numbers, every cluster works on its numbers in ascending order, and the lowest number that is not done is being
worked on, or will be, by a cluster that waits for nothing.  And there always is a next step: Linear1's band has at most `window` blocks, so
if it does not fit, Linear2 is behind it by a band or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..layouts.arith import Int, ceil_div, minimum, select
from .fused_moe import FC1, Block, FusedMoeOrder, FusedMoePlan
from .scheduler import there_and_back


class RingPlan(FusedMoePlan, Protocol):
    """What the order reads of a configuration."""

    @property
    def ring_blocks(self) -> int:
        """Token blocks that the pool has rows for."""
        ...

    @property
    def window(self) -> int:
        """Places from the first that Linear2 has yet to come to, to the last that Linear1 may come to; at most `ring_blocks`."""
        ...


@dataclass(frozen=True)
class RingStep:
    """A band of each phase: its expert, the first token block of that expert, and how many are in this step.  None are if the band comes in
    a later step, and if the expert has no tokens."""

    fc1_expert: Int
    fc1_first: Int
    fc1_rows: Int
    fc2_expert: Int
    fc2_first: Int
    fc2_rows: Int
    fc1: Int
    fc2: Int

    @property
    def total(self) -> Int:
        return self.fc1 + self.fc2


@dataclass(frozen=True)
class RingOrder(FusedMoeOrder):
    """Bands of Linear1, and of Linear2 as far behind as the ring allows."""

    config: Any  # RingPlan; cutlass.Constexpr in a kernel
    table: Any  # ExpertTable

    def has(self, step: Int, sizes: RingStep) -> Any:
        """While Linear2 of an expert is left."""
        return sizes.fc2_expert < self.config.problem.experts_per_rank

    def first_sizes(self, zero: Int) -> RingStep:
        """Before the first band: no blocks."""
        return RingStep(zero, zero, zero, zero, zero, zero, zero, zero)

    def part(self, step: Int, before: RingStep) -> RingStep:
        """The step before, which says where this one goes on."""
        return before

    def sizes(self, part: RingStep) -> RingStep:
        """Sizes of the step that follows the step `part` of the walk."""
        config, table = self.config, self.table
        last = config.problem.experts_per_rank
        fc1_expert, fc1_first = self._following(part.fc1_expert, part.fc1_first + part.fc1_rows)
        fc2_expert, fc2_first = self._following(part.fc2_expert, part.fc2_first + part.fc2_rows)
        fc1_rows, fc2_rows = self._band(fc1_expert, fc1_first), self._band(fc2_expert, fc2_first)
        fc1_place, fc2_place = table.first_block(fc1_expert) + fc1_first, table.first_block(fc2_expert) + fc2_first
        blocks = table.first_block(last)
        room = fc2_place + select(blocks <= config.ring_blocks, blocks, config.window)
        crowded = fc1_place + fc1_rows > room
        late = (fc1_expert == last) | (fc1_expert - fc2_expert >= config.lookahead)
        fc1_rows, fc2_rows = select(crowded, 0, fc1_rows), select(crowded | late, fc2_rows, 0)
        tiles = fc1_rows * config.fc1_n_blocks, fc2_rows * config.fc2_n_blocks
        return RingStep(fc1_expert, fc1_first, fc1_rows, fc2_expert, fc2_first, fc2_rows, *tiles)

    def _following(self, expert: Int, first: Int) -> tuple[Int, Int]:
        """The place with this token block of an expert, or where the next expert begins if it has none."""
        ended = first >= self._blocks(expert)
        return select(ended, minimum(expert + 1, self.config.problem.experts_per_rank), expert), select(ended, 0, first)

    def _band(self, expert: Int, first: Int) -> Int:
        """Token blocks of a band."""
        return minimum(self._blocks(expert) - first, min(self.config.group_m, self.config.window))

    def _blocks(self, expert: Int) -> Int:
        """Token blocks of an expert."""
        return ceil_div(self.table.tokens(expert), self.config.block_m)

    def block(self, step: Int, local: Int, sizes: RingStep) -> Block:
        """The block, its phase and expert included."""
        config = self.config
        phase, number = self._part(local, sizes)
        is_fc1 = phase == FC1
        expert, first, rows = (
            select(is_fc1, getattr(sizes, f"fc1_{name}"), getattr(sizes, f"fc2_{name}")) for name in ("expert", "first", "rows")
        )
        row, n_block = there_and_back(number, select(rows > 0, rows, 1))
        tokens, m_block = self.table.tokens(expert), first + row
        valid_m = minimum(tokens - m_block * config.block_m, config.block_m)
        return Block(phase, expert, m_block, n_block, self.table.first_block(expert) + m_block, valid_m)

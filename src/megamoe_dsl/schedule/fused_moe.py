"""The order of the fused MoE kernels' blocks (article 3.2.2): Linear1 some experts ahead of Linear2.

The sequence has one step for each expert: its Linear1, and the Linear2 of the expert `lookahead` before it.  Within a step, runs of
`INTERLEAVE` fetches of one phase and of the other alternate while both phases last; then comes what is left of Linear1, then of Linear2.
An expert's blocks are taken in bands of `group_m` token blocks (`place_in_bands`).  A cluster takes one number at a time on SM100, and on
SM90 one for each of its CTAs: first those of its own index, then, whenever it is free, the next ones that nobody has taken.

When the token pool is a ring (`RingOrder`), place p of the token blocks, in the order of experts, takes the rows of place
p - `ring_blocks`.  A step then has the next band of Linear1, the next band of Linear2, or both:

- Linear1, if with it no more than `window` places lie between the first that Linear2 has yet to come to and the last of Linear1's;
- Linear2, if the band of Linear1 does not fit, or is `lookahead` experts ahead, or if there is none left.

A launch whose blocks all fit in the ring has no window, and the order of a pool that holds everything.

No wait can deadlock, whichever cluster takes which numbers: every block waits only for blocks with lower numbers, and every cluster works
on its numbers in ascending order.  Linear2 of p waits for Linear1 of p, which comes in an earlier step; Linear1 of p waits, by way of
dispatch, for Linear2 of places up to p - `ring_blocks`, which come in earlier steps because `window` is at most `ring_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from ..layouts.arith import Int, ceil_div, div, minimum, select
from .scheduler import Order, Scheduler, place_in_bands, there_and_back


@dataclass(frozen=True)
class HostTable:
    """Tokens and first block of rows of each expert, from a list of token counts; the entry after the last expert holds 0 tokens.  The
    table in a kernel has the same methods."""

    counts: tuple[int, ...]
    block_m: int

    @classmethod
    def of(cls, counts: Sequence[int], block_m: int) -> HostTable:
        return cls(tuple(counts), block_m)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """First block of each expert, followed by the number of blocks."""
        return (0, *accumulate(ceil_div(tokens, self.block_m) for tokens in self.counts))

    @cached_property
    def valid(self) -> tuple[int, ...]:
        """Number of tokens of each block, in pool order."""
        step = self.block_m
        return tuple(min(step, tokens - begin) for tokens in self.counts for begin in range(0, tokens, step))

    def tokens(self, expert: int) -> int:
        return (*self.counts, 0)[expert]

    def first_block(self, expert: int) -> int:
        return self.first[min(expert, len(self.counts))]


FC1 = 0  # phases of a block
FC2 = 1
INTERLEAVE = 16  # fetches of a phase that follow one another; 8 and 32 made no difference (docs/lab/studies.md)
MMA_N_GRANULE = 16  # tokens of a pair's MMA: each CTA supplies half, in groups of 8


def mma_tokens(valid_m: Int) -> Int:
    """Tokens that an SM100 pair's MMA covers for a block with `valid_m` tokens."""
    return (valid_m + (MMA_N_GRANULE - 1)) & -MMA_N_GRANULE


@dataclass(frozen=True)
class Block:
    """One tile of a fused MoE kernel.

    phase       FC1 or FC2
    expert      local expert; experts_per_rank past the last block
    m_block     token block of the expert
    n_block     256 weight rows
    pool_block  the token block's place in the pool
    valid_m     tokens in the block; 0 or less past the last block
    """

    phase: Int
    expert: Int
    m_block: Int
    n_block: Int
    pool_block: Int
    valid_m: Int

    @property
    def mma_n(self) -> Int:
        return mma_tokens(self.valid_m)


@dataclass(frozen=True)
class PhaseSizes:
    """Blocks of a step: of Linear1, none past the last expert, and of Linear2, none before the first."""

    fc1: Int
    fc2: Int

    @property
    def total(self) -> Int:
        return self.fc1 + self.fc2


@dataclass(frozen=True)
class FusedMoeOrder(Order):
    """Step s: Linear1 of local expert s, and Linear2 of expert s - lookahead.  `blocks_per_fetch` of the configuration are consecutive
    numbers that a cluster takes at a time.
    """

    config: Any  # cutlass.Constexpr in a kernel
    table: Any  # as HostTable

    @property
    def num_steps(self) -> int:
        """Number of steps: one per expert, plus `lookahead`."""
        return self.config.problem.experts_per_rank + self.config.lookahead

    def first_sizes(self, zero: Int) -> Any:
        return PhaseSizes(self._blocks(zero) * self.config.fc1_n_blocks, zero)

    def part(self, step: Int, before: Any) -> Any:
        """The step's two experts: Linear1's, and Linear2's, which is `experts_per_rank` where there is none."""
        config = self.config
        return step, select(step < config.lookahead, config.problem.experts_per_rank, step - config.lookahead)

    def sizes(self, part: Any) -> Any:
        config, (fc1_expert, fc2_expert) = self.config, part
        fc1_expert = minimum(fc1_expert, config.problem.experts_per_rank)
        return PhaseSizes(self._blocks(fc1_expert) * config.fc1_n_blocks, self._blocks(fc2_expert) * config.fc2_n_blocks)

    def _blocks(self, expert: Int) -> Int:
        return ceil_div(self.table.tokens(expert), self.config.block_m)

    def block(self, step: Int, local: Int, sizes: Any) -> Block:
        config = self.config
        phase, number = self._part(local, sizes)
        is_fc1 = phase == FC1
        expert = select(is_fc1, step, step - config.lookahead)
        tokens = self.table.tokens(expert)
        return self._block(phase, expert, tokens, *self._place(is_fc1, number, ceil_div(tokens, config.block_m)))

    def _block(self, phase: Int, expert: Int, tokens: Int, m_block: Int, n_block: Int) -> Block:
        valid_m = minimum(tokens - m_block * self.config.block_m, self.config.block_m)
        return Block(phase, expert, m_block, n_block, self.table.first_block(expert) + m_block, valid_m)

    def _part(self, local: Int, sizes: Any) -> tuple[Int, Int]:
        """Phase of the block, and its number within the phase: first runs of both in turn, then the rest of Linear1, then of Linear2."""
        run = INTERLEAVE * self.config.blocks_per_fetch
        both = div(minimum(sizes.fc1, sizes.fc2), run) * run  # blocks of each phase that alternate
        index = div(local, run)
        alternates, in_fc1 = local < 2 * both, local < both + sizes.fc1
        phase = select(alternates, index & 1, select(in_fc1, FC1, FC2))
        of_others = select(alternates, div(index + 1, 2) * run, select(in_fc1, both, sizes.fc1))  # the other phase's blocks so far
        return phase, local - of_others

    def _place(self, is_fc1: Any, number: Int, m_blocks: Int) -> tuple[Int, Int]:
        size, n_blocks = self.config.group_m, (self.config.fc1_n_blocks, self.config.fc2_n_blocks)
        band = select(is_fc1, *(div(number, size * n) for n in n_blocks))
        return place_in_bands(number, size, m_blocks, select(is_fc1, *n_blocks), band)

    @classmethod
    def blocks(cls, config: Any, counts: Sequence[int], cluster: int) -> Iterator[Block]:
        """Blocks of one cluster, in order, for the token counts of the local experts, if they take numbers round robin.  Raises ValueError
        when there are more or fewer counts than local experts."""
        experts, at_a_time = config.problem.experts_per_rank, config.blocks_per_fetch
        if len(counts) != experts:
            raise ValueError(f"counts has {len(counts)} entries: must have experts_per_rank = {experts}")
        order = cls(config, HostTable.of(counts, config.block_m))
        return Scheduler.blocks(order, cluster * at_a_time, config.num_clusters * at_a_time, at_a_time)


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
    """Bands of Linear1, and of Linear2 as far behind as the ring allows.  Of a configuration it reads `ring_blocks`, token blocks that the
    pool has rows for, and `window`, at most as many: places from the first that Linear2 has yet to reach, to the last that Linear1 may."""

    def has(self, step: Int, sizes: RingStep) -> Any:
        return sizes.fc2_expert < self.config.problem.experts_per_rank

    def first_sizes(self, zero: Int) -> RingStep:
        return RingStep(zero, zero, zero, zero, zero, zero, zero, zero)

    def part(self, step: Int, before: RingStep) -> RingStep:
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
        return minimum(self._blocks(expert) - first, min(self.config.group_m, self.config.window))

    def block(self, step: Int, local: Int, sizes: RingStep) -> Block:
        """The block with its phase and expert."""
        phase, number = self._part(local, sizes)
        is_fc1 = phase == FC1
        expert, first, rows = (
            select(is_fc1, getattr(sizes, f"fc1_{name}"), getattr(sizes, f"fc2_{name}")) for name in ("expert", "first", "rows")
        )
        row, n_block = there_and_back(number, select(rows > 0, rows, 1))
        return self._block(phase, expert, self.table.tokens(expert), first + row, n_block)

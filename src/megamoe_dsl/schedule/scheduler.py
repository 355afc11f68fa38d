"""The block scheduler of the mega kernel (article 3.2.2): waves of experts, Linear1 of a wave before its Linear2, blocks dealt to clusters.

All blocks of a launch form one sequence, in which Linear1 is one wave ahead: L1 of waves 0 and 1, L2 of wave 0, L1 of wave 2, L2 of wave 1,
and so on; within each, expert by expert.  The article has no wave between L1 and L2 of one wave: then a cluster that is through with L1
waits for the slowest (on an H200 a tenth of the time of Flash with 8192 tokens).

The blocks of an expert are taken in groups of `config.group_m` token blocks.  Within a group the 256-row weight blocks follow one another,
and for each of them the group's token blocks, there and back: what runs at the same time shares weights and tokens in L2, and of any two
blocks that follow one another either the weights or the tokens are the same.  With groups of one, SM100's, the weight block is fastest, as
in the article.

On SM100 cluster c of C takes numbers c, c + C, c + 2 C ...  On SM90 a cluster of n CTAs takes n numbers at a time, one for each CTA: those
of its own number first, and then, whenever it is free, the next ones that nobody has taken: SMs are not equally fast, and a Linear1 block
takes longer than a Linear2 block.

Every L1 block of a wave precedes every L2 block of it, so a block waits only for lower numbers.  A cluster takes numbers in ascending order
and works in that order: the lowest number that is not done has a cluster that works on it, or gets one without waiting for anything else.
So waiting for another cluster's L1 output cannot deadlock, however the numbers are dealt.

`Scheduler` is frozen and its state are plain integers.  Host: `for block in scheduler.blocks()`.  Kernel: the same `first`, `unsettled`,
`advance`, `skip` and `forward` on traced integers, with `settle` as the traced loop (kernels/mega_moe/table.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import KernelConfig
from ..layouts.arith import Int, ceil_div, div, minimum, select
from ..layouts.pool import pool_blocks

LINEAR1, LINEAR2 = 0, 1
MMA_N_GRANULE = 16  # tokens of a pair's MMA: each CTA supplies half, in groups of 8


class ExpertTable(Protocol):
    """Tokens and first pool block of each local expert; index `experts_per_rank` holds 0 tokens."""

    def tokens(self, expert: Int) -> Int: ...

    def pool_block(self, expert: Int) -> Int: ...


@dataclass(frozen=True)
class HostTable:
    """An expert table from a list of token counts."""

    counts: tuple[int, ...]
    block_m: int

    @classmethod
    def of(cls, counts: Sequence[int], block_m: int) -> HostTable:
        return cls(tuple(counts), block_m)

    def tokens(self, expert: int) -> int:
        return (*self.counts, 0)[expert]

    def pool_block(self, expert: int) -> int:
        return pool_blocks(list(self.counts), self.block_m)[expert]


@dataclass(frozen=True)
class Block:
    """One tile.  `n_block` counts 256 weight rows; `pool_block` is the block's place in the pool."""

    phase: int
    expert: int
    m_block: int
    n_block: int
    pool_block: int
    valid_m: int


@dataclass(frozen=True)
class Scheduler:
    """Position of one cluster in the sequence of blocks."""

    config: Any  # KernelConfig; cutlass.Constexpr in a kernel
    table: Any  # ExpertTable
    phase: Int  # LINEAR1 or LINEAR2
    expert: Int  # local expert; experts_per_rank when there is no block left
    local: Int  # number of the block within (phase, expert)
    tokens: Int  # of the expert
    pool_first: Int  # the expert's first pool block
    stride: int  # block numbers between two blocks of this walk

    @classmethod
    def start(cls, config: KernelConfig, table: ExpertTable, block: Int, every: int = 1, integer: Any = int) -> Scheduler:
        """Unsettled position at block number `block`; the walk takes every `every`-th turn of its cluster.

        `integer` is `Int32` in a kernel.
        """
        zero = integer(0)
        stride = every * config.num_clusters * config.blocks_per_turn
        return cls(config, table, integer(LINEAR1), zero, block, table.tokens(zero), table.pool_block(zero), stride)

    # --- the current block
    def valid(self) -> Any:
        """Whether the (settled) position has a block."""
        return self.expert < self.config.problem.experts_per_rank

    @property
    def n_blocks(self) -> Int:
        """Weight blocks of the phase."""
        return select(self.phase == LINEAR1, self.config.l1_n_blocks, self.config.l2_n_blocks)

    @property
    def m_blocks(self) -> Int:
        return ceil_div(self.tokens, self.config.block_m)

    @property
    def m_block(self) -> Int:
        return self._place()[0]

    @property
    def n_block(self) -> Int:
        return self._place()[1]

    def _place(self) -> tuple[Int, Int]:
        """Token block and weight block."""
        size, n_blocks = self.config.group_m, (self.config.l1_n_blocks, self.config.l2_n_blocks)
        l1, l2 = (div(self.local, size * n) for n in n_blocks)
        group = select(self.phase == LINEAR1, l1, l2)
        rest = self.local - group * (size * self.n_blocks)
        if size == 1:
            return group, rest
        rows = minimum(self.m_blocks - group * size, size)
        rows = select(rows > 0, rows, 1)  # of no group: the position is past the last block
        n_block = div(rest, rows)
        row = rest - n_block * rows
        return group * size + select((n_block & 1) == 0, row, rows - 1 - row), n_block

    @property
    def pool_block(self) -> Int:
        return self.pool_first + self.m_block

    @property
    def valid_m(self) -> Int:
        """Tokens in the block."""
        return minimum(self.tokens - self.m_block * self.config.block_m, self.config.block_m)

    @property
    def mma_n(self) -> Int:
        """Tokens the MMA covers."""
        return (self.valid_m + (MMA_N_GRANULE - 1)) & -MMA_N_GRANULE

    # --- moving on
    def unsettled(self) -> Any:
        """Whether the block number lies past the blocks of (phase, expert) while experts remain."""
        return (self.expert < self.config.problem.experts_per_rank) & (self.local >= self.m_blocks * self.n_blocks)

    def advance(self) -> Scheduler:
        """To the next expert of the wave; from its last one to what follows the wave's phase."""
        wave = self.config.experts_per_wave
        following = self.expert + 1
        wave_ends = following == div(self.expert, wave) * wave + wave
        next_expert, next_phase = self._next_wave(following)
        expert, phase = select(wave_ends, next_expert, following), select(wave_ends, next_phase, self.phase)
        return dataclasses.replace(
            self,
            phase=phase,
            expert=expert,
            local=self.local - self.m_blocks * self.n_blocks,
            tokens=self.table.tokens(expert),
            pool_first=self.table.pool_block(expert),
        )

    def _next_wave(self, end: Int) -> tuple[Int, Int]:
        """First expert, and phase, of what comes after a wave whose last expert is end - 1."""
        wave, experts = self.config.experts_per_wave, self.config.problem.experts_per_rank
        after_l1 = (end - wave, LINEAR2)
        after_l2 = (end, LINEAR2)
        if wave < experts:
            opens = end == wave  # the first wave's L2 waits for L1 of the second
            after_l1 = (select(opens, end, end - 2 * wave), select(opens, LINEAR1, LINEAR2))
            more = end + 2 * wave <= experts  # waves without L1 yet
            after_l2 = (select(more, end + wave, end), select(more, LINEAR1, LINEAR2))
        is_l1 = self.phase == LINEAR1
        return select(is_l1, after_l1[0], after_l2[0]), select(is_l1, after_l1[1], after_l2[1])

    def skip(self) -> Scheduler:
        """The first block of the walk's next turn, unsettled."""
        return self.forward(self.stride)

    def forward(self, numbers: Int) -> Scheduler:
        """The block number that is `numbers` higher, unsettled."""
        return dataclasses.replace(self, local=self.local + numbers)

    # --- host iteration
    def settle(self) -> Scheduler:
        position = self
        while position.unsettled():
            position = position.advance()
        return position

    def block(self) -> Block:
        return Block(self.phase, self.expert, self.m_block, self.n_block, self.pool_block, self.valid_m)

    @classmethod
    def blocks(cls, config: KernelConfig, counts: Sequence[int], cluster: int) -> Iterator[Block]:
        """Blocks of one cluster, in order, for the token counts of the local experts, if turns are dealt round robin."""
        if len(counts) != config.problem.experts_per_rank:
            raise ValueError(f"counts has {len(counts)} entries: must have experts_per_rank = {config.problem.experts_per_rank}")
        turn = config.blocks_per_turn
        position = cls.start(config, HostTable.of(counts, config.block_m), cluster * turn).settle()
        while position.valid():
            yield from (position.forward(i).block() for i in range(turn))
            position = position.skip().settle()

"""The block scheduler of the mega kernel (article 3.2.2): Linear1 some experts ahead of Linear2, blocks dealt to clusters.

All blocks of a launch form one sequence of steps, one for each expert: its Linear1, and the Linear2 of the expert `config.lead` before it.
Within a step `ALTERNATE` turns of one phase follow as many of the other, while both last.  The article runs Linear1 of a wave of experts,
then its Linear2, then the next wave: clusters that are through with Linear1 wait for the slowest one (on H200s 10 % of the time of Flash
with 8192 tokens), and all of them send Linear2's results at once over an NVLink that is idle at other times (6 %, with seven eighths of the
results for other GPUs).

The blocks of an expert are taken in groups of `config.group_m` token blocks.  Within a group the 256-row weight blocks follow one another,
and for each of them the group's token blocks, there and back: what runs at the same time shares weights and tokens in L2, and of any two
blocks that follow one another either the weights or the tokens are the same.  With groups of one, SM100's, the weight block is fastest, as
in the article.

On SM100 cluster c of C takes numbers c, c + C, c + 2 C ..., of both phases unless 2 `ALTERNATE` divides C.  On SM90 a cluster of n CTAs
takes n numbers at a time, one for each CTA: those of its own number first, and then, whenever it is free, the next ones that nobody has
taken: SMs are not equally fast, and a Linear1 block takes longer than a Linear2 block.

Linear1 of an expert comes a step or more before its Linear2, so a block waits only for lower numbers.  A cluster takes numbers in ascending
order and works in that order: the lowest number that is not done has a cluster that works on it, or gets one without waiting for anything
else.  So waiting for another cluster's L1 output cannot deadlock, however the numbers are dealt.

`Scheduler` is frozen and its state are plain integers.  Host: `for block in scheduler.blocks()`.  Kernel: the same `start`, `unsettled`,
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
ALTERNATE = 16  # turns; 8 and 32 made no difference beyond 0.6 %
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
    step: Int  # Linear1 of local expert `step`, Linear2 of `step - lead`
    local: Int  # number of the block within the step
    l1_blocks: Int  # of the step's Linear1, none past the last expert
    l2_blocks: Int  # of the step's Linear2, none before the first expert
    stride: int  # block numbers between two blocks of this walk

    @classmethod
    def start(cls, config: KernelConfig, table: ExpertTable, block: Int, every: int = 1, integer: Any = int) -> Scheduler:
        """Unsettled position at block number `block`; the walk takes every `every`-th turn of its cluster.

        `integer` is `Int32` in a kernel.
        """
        zero = integer(0)
        stride = every * config.num_clusters * config.blocks_per_turn
        return cls(config, table, zero, block, ceil_div(table.tokens(zero), config.block_m) * config.l1_n_blocks, zero, stride)

    # --- the current block
    def _part(self) -> tuple[Int, Int]:
        """Phase of the block, and its number within the phase: by turns of both, then what is left of Linear1, then of Linear2."""
        size = ALTERNATE * self.config.blocks_per_turn
        both = div(minimum(self.l1_blocks, self.l2_blocks), size) * size  # blocks of each phase that alternate
        chunk = div(self.local, size)
        alternates, in_l1 = self.local < 2 * both, self.local < both + self.l1_blocks
        phase = select(alternates, chunk & 1, select(in_l1, LINEAR1, LINEAR2))
        of_others = select(alternates, div(chunk + 1, 2) * size, select(in_l1, both, self.l1_blocks))  # blocks before this one
        return phase, self.local - of_others

    def valid(self) -> Any:
        """Whether the (settled) position has a block."""
        return self.step < self.config.problem.experts_per_rank + self.config.lead

    @property
    def phase(self) -> Int:
        """LINEAR1 or LINEAR2."""
        return self._part()[0]

    @property
    def expert(self) -> Int:
        """Local expert; experts_per_rank when there is no block left."""
        return select(self.phase == LINEAR1, self.step, self.step - self.config.lead)

    @property
    def tokens(self) -> Int:
        """Of the expert."""
        return self.table.tokens(self.expert)

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
        phase, number = self._part()
        size, n_blocks = self.config.group_m, (self.config.l1_n_blocks, self.config.l2_n_blocks)
        l1, l2 = (div(number, size * n) for n in n_blocks)
        group = select(phase == LINEAR1, l1, l2)
        rest = number - group * (size * self.n_blocks)
        if size == 1:
            return group, rest
        rows = minimum(self.m_blocks - group * size, size)
        rows = select(rows > 0, rows, 1)  # of no group: the position is past the last block
        n_block = div(rest, rows)
        row = rest - n_block * rows
        return group * size + select((n_block & 1) == 0, row, rows - 1 - row), n_block

    @property
    def pool_block(self) -> Int:
        return self.table.pool_block(self.expert) + self.m_block

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
        """Whether the block number lies past the blocks of the step while steps remain."""
        return self.valid() & (self.local >= self.l1_blocks + self.l2_blocks)

    def advance(self) -> Scheduler:
        """To the next step."""
        config, step = self.config, self.step + 1
        nobody = config.problem.experts_per_rank
        l1_tokens = self.table.tokens(minimum(step, nobody))
        l2_tokens = self.table.tokens(select(step < config.lead, nobody, step - config.lead))
        return dataclasses.replace(
            self,
            step=step,
            local=self.local - (self.l1_blocks + self.l2_blocks),
            l1_blocks=ceil_div(l1_tokens, config.block_m) * config.l1_n_blocks,
            l2_blocks=ceil_div(l2_tokens, config.block_m) * config.l2_n_blocks,
        )

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

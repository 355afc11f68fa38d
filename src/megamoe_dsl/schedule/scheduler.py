"""The block scheduler of the mega kernel (article 3.2.2): Linear1 some experts ahead of Linear2, blocks dealt to clusters.

All blocks of a launch form one sequence of steps, one for each expert: its Linear1, and the Linear2 of the expert `config.lookahead`
before it. Within a step `INTERLEAVE` turns of one phase follow as many of the other, while both last.  The article runs Linear1 of a wave
of experts, then its Linear2, then the next wave: clusters that are through with Linear1 wait for the slowest one (on H200s 10 % of the
time of Flash with 8192 tokens), and all of them send Linear2's results at once over an NVLink that is idle at other times (2 to 6 %, with
seven eighths of the results for other GPUs).

The blocks of an expert are taken in groups of `config.group_m` token blocks.  Within a group the 256-row weight blocks follow one another,
and for each of them the group's token blocks, there and back: what runs at the same time shares weights and tokens in L2, and of any two
blocks that follow one another either the weights or the tokens are the same.  With groups of one, SM100's, the weight block is fastest, as
in the article.

On SM100 cluster c of C takes numbers c, c + C, c + 2 C ...; where the phases alternate it gets tiles of both, unless C is a multiple of
2 `INTERLEAVE`.  On SM90 a cluster of n CTAs takes n numbers at a time, one for each CTA: those of its own number first, and then, whenever
it is free, the next ones that nobody has taken: SMs are not equally fast, and a Linear1 block takes longer than a Linear2 block.

Linear1 of an expert comes a step or more before its Linear2, so a block waits only for lower numbers.  A cluster takes numbers in ascending
order and works in that order: the lowest number that is not done has a cluster that works on it, or gets one without waiting for anything
else.  So waiting for another cluster's Linear1 output cannot deadlock, however the numbers are dealt.

`Scheduler` is frozen and its state are plain integers.  Host: `for block in scheduler.blocks()`.  Kernel: the same `start`, `invalid`,
`advance`, `skip` and `forward` on traced integers, with `advance_to_valid` as the traced loop (kernels/mega_moe/table.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..kernels.mega_moe.layouts.pool import pool_blocks
from ..kernels.mega_moe.sm100.config import Sm100Config
from ..layouts.arith import Int, ceil_div, div, minimum, select

FC1, FC2 = 0, 1
INTERLEAVE = 16  # turns; 8 and 32 made no difference (docs/hopper.md)
MMA_N_GRANULE = 16  # tokens of a pair's MMA: each CTA supplies half, in groups of 8


class ExpertTable(Protocol):
    """Tokens and first pool block of each local expert; index `experts_per_rank` holds 0 tokens."""

    def tokens(self, expert: Int) -> Int:
        """Tokens of a local expert."""
        ...

    def pool_block(self, expert: Int) -> Int:
        """Block of the pool where the expert's tokens begin."""
        ...


@dataclass(frozen=True)
class HostTable:
    """An expert table from a list of token counts."""

    counts: tuple[int, ...]
    block_m: int

    @classmethod
    def of(cls, counts: Sequence[int], block_m: int) -> HostTable:
        """From the tokens of each local expert."""
        return cls(tuple(counts), block_m)

    def tokens(self, expert: int) -> int:
        """Tokens of a local expert."""
        return (*self.counts, 0)[expert]

    def pool_block(self, expert: int) -> int:
        """Block of the pool where the expert's tokens begin."""
        return pool_blocks(list(self.counts), self.block_m)[expert]


@dataclass(frozen=True)
class Block:
    """One tile.

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
        """Tokens the MMA covers."""
        return (self.valid_m + (MMA_N_GRANULE - 1)) & -MMA_N_GRANULE


@dataclass(frozen=True)
class Scheduler:
    """Position of one cluster in the sequence of blocks."""

    config: Any  # Sm100Config; cutlass.Constexpr in a kernel
    table: Any  # ExpertTable
    step: Int  # Linear1 of local expert `step`, Linear2 of `step - lookahead`
    local: Int  # number of the block within the step
    fc1_blocks: Int  # of the step's Linear1, none past the last expert
    fc2_blocks: Int  # of the step's Linear2, none before the first expert
    stride: int  # block numbers between two blocks of this walk

    @classmethod
    def start(cls, config: Sm100Config, table: ExpertTable, block: Int, every: int = 1, integer: Any = int) -> Scheduler:
        """Unsettled position at block number `block`; the walk takes every `every`-th turn of its cluster.

        `integer` is `Int32` in a kernel.
        """
        zero = integer(0)
        stride = every * config.num_clusters * config.blocks_per_fetch
        return cls(config, table, zero, block, blocks_of(config, table, zero, config.fc1_n_blocks), zero, stride)

    # --- the current block
    def valid(self) -> Any:
        """Whether the (settled) position has a block."""
        return self.step < self.config.problem.experts_per_rank + self.config.lookahead

    def block(self) -> Block:
        """Of a settled position, or of the one past the last block."""
        config = self.config
        phase, number = self._part()
        is_fc1 = phase == FC1
        expert = select(is_fc1, self.step, self.step - config.lookahead)
        tokens = self.table.tokens(expert)
        m_block, n_block = self._place(is_fc1, number, ceil_div(tokens, config.block_m))
        valid_m = minimum(tokens - m_block * config.block_m, config.block_m)
        return Block(phase, expert, m_block, n_block, self.table.pool_block(expert) + m_block, valid_m)

    def _part(self) -> tuple[Int, Int]:
        """Phase of the block, and its number within the phase: by turns of both, then what is left of Linear1, then of Linear2."""
        size = INTERLEAVE * self.config.blocks_per_fetch
        both = div(minimum(self.fc1_blocks, self.fc2_blocks), size) * size  # blocks of each phase that alternate
        chunk = div(self.local, size)
        alternates, in_fc1 = self.local < 2 * both, self.local < both + self.fc1_blocks
        phase = select(alternates, chunk & 1, select(in_fc1, FC1, FC2))
        of_others = select(alternates, div(chunk + 1, 2) * size, select(in_fc1, both, self.fc1_blocks))  # blocks before this one
        return phase, self.local - of_others

    def _place(self, is_fc1: Any, number: Int, m_blocks: Int) -> tuple[Int, Int]:
        """Token block and weight block of an expert's block with this number."""
        size, n_blocks = self.config.group_m, (self.config.fc1_n_blocks, self.config.fc2_n_blocks)
        fc1, fc2 = (div(number, size * n) for n in n_blocks)
        group = select(is_fc1, fc1, fc2)
        rest = number - group * (size * select(is_fc1, *n_blocks))
        if size == 1:
            return group, rest
        rows = minimum(m_blocks - group * size, size)
        rows = select(rows > 0, rows, 1)  # of no group: the position is past the last block
        n_block = div(rest, rows)
        row = rest - n_block * rows
        return group * size + select((n_block & 1) == 0, row, rows - 1 - row), n_block

    # --- moving on
    def invalid(self) -> Any:
        """Whether the block number lies past the blocks of the step while steps remain."""
        return self.valid() & (self.local >= self.fc1_blocks + self.fc2_blocks)

    def advance(self) -> Scheduler:
        """To the next step."""
        config, step = self.config, self.step + 1
        nobody = config.problem.experts_per_rank
        fc2_expert = select(step < config.lookahead, nobody, step - config.lookahead)
        return dataclasses.replace(
            self,
            step=step,
            local=self.local - (self.fc1_blocks + self.fc2_blocks),
            fc1_blocks=blocks_of(config, self.table, minimum(step, nobody), config.fc1_n_blocks),
            fc2_blocks=blocks_of(config, self.table, fc2_expert, config.fc2_n_blocks),
        )

    def skip(self) -> Scheduler:
        """The first block of the walk's next turn, invalid."""
        return self.forward(self.stride)

    def forward(self, numbers: Int) -> Scheduler:
        """The block number that is `numbers` higher, invalid."""
        return dataclasses.replace(self, local=self.local + numbers)

    # --- host iteration
    def advance_to_valid(self) -> Scheduler:
        """This block if it exists, else the next one that does; the position past the last one stays."""
        position = self
        while position.invalid():
            position = position.advance()
        return position

    @classmethod
    def blocks(cls, config: Sm100Config, counts: Sequence[int], cluster: int) -> Iterator[Block]:
        """Blocks of one cluster, in order, for the token counts of the local experts, if turns are dealt round robin."""
        if len(counts) != config.problem.experts_per_rank:
            raise ValueError(f"counts has {len(counts)} entries: must have experts_per_rank = {config.problem.experts_per_rank}")
        turn = config.blocks_per_fetch
        position = cls.start(config, HostTable.of(counts, config.block_m), cluster * turn).advance_to_valid()
        while position.valid():
            yield from (position.forward(i).block() for i in range(turn))
            position = position.skip().advance_to_valid()


def blocks_of(config: Sm100Config, table: ExpertTable, expert: Int, n_blocks: int) -> Int:
    """Of an expert in a phase with so many weight blocks."""
    return ceil_div(table.tokens(expert), config.block_m) * n_blocks

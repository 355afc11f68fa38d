"""The orders of a GEMM's blocks: band after band of row blocks, and in each band all columns (`place_in_bands`).  With groups, whose rows
are sorted by expert, expert by expert, and within an expert as in a dense GEMM.

Of a configuration they read `block_m`, `n_blocks`, `group_m`, the row blocks of a band, and with groups `num_experts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..layouts.arith import Int, ceil_div, minimum, select
from .scheduler import OneSize, Order, place_in_bands


@dataclass(frozen=True)
class GemmBlock:
    """One tile of the result.

    expert   past the last block, how many there are; a dense GEMM has one
    m_block  row block of the expert
    n_block  column block
    valid_m  rows of the expert in it; 0 or less past the last block
    """

    expert: Int
    m_block: Int
    n_block: Int
    valid_m: Int


@dataclass(frozen=True)
class GemmOrder(Order):
    """One step for each expert."""

    config: Any  # cutlass.Constexpr in a kernel

    tokens: ClassVar[Any]  # of a step: rows of its expert, 0 past the last

    def sizes(self, part: Int) -> OneSize:
        return OneSize(ceil_div(self.tokens(part), self.config.block_m) * self.config.n_blocks)

    def block(self, step: Int, local: Int, sizes: OneSize) -> GemmBlock:
        config, tokens = self.config, self.tokens(step)
        m_block, n_block = place_in_bands(local, config.group_m, ceil_div(tokens, config.block_m), config.n_blocks)
        valid_m = minimum(tokens - m_block * config.block_m, config.block_m)
        return GemmBlock(step, m_block, n_block, valid_m)


@dataclass(frozen=True)
class DenseOrder(GemmOrder):
    """`rows` rows, which may be known at run time only; all blocks are one step."""

    rows: Int
    num_steps = 1

    def tokens(self, step: Int) -> Int:
        return select(step == 0, self.rows, 0)


@dataclass(frozen=True)
class GroupedOrder(GemmOrder):
    """One step per expert of a table such as `fused_moe.HostTable`."""

    table: Any

    @property
    def num_steps(self) -> int:
        return int(self.config.num_experts)

    def tokens(self, step: Int) -> Int:
        return self.table.tokens(step)

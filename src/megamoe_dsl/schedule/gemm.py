"""The orders of a GEMM's blocks: band after band of row blocks, and in each band all columns (`place_in_bands`).  With groups, whose rows
are sorted by expert, expert by expert, and within an expert as in a dense GEMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..layouts.arith import Int, ceil_div, minimum, select
from .scheduler import NumberedSteps, OneSize, place_in_bands


class DensePlan(Protocol):
    """What the order reads of a configuration."""

    @property
    def block_m(self) -> int: ...

    @property
    def n_blocks(self) -> int: ...

    @property
    def group_m(self) -> int:
        """Row blocks of a band."""
        ...


@dataclass(frozen=True)
class DenseBlock:
    """One tile of the result; `valid_m` of its rows exist, 0 or less past the last block."""

    m_block: Int
    n_block: Int
    valid_m: Int


@dataclass(frozen=True)
class DenseOrder(NumberedSteps):
    """`rows` rows, which may be known at run time only; all blocks are one step."""

    config: Any  # DensePlan; cutlass.Constexpr in a kernel
    rows: Int

    @property
    def num_steps(self) -> int:
        return 1

    def sizes(self, part: Int) -> OneSize:
        """All blocks, or none past the only step."""
        return OneSize(ceil_div(self._rows(part), self.config.block_m) * self.config.n_blocks)

    def _rows(self, step: Int) -> Int:
        """Of a step: all of them, or none past the only one."""
        return select(step == 0, self.rows, 0)

    def block(self, step: Int, local: Int, sizes: OneSize) -> DenseBlock:
        """The block, with rows of the whole matrix."""
        config, rows = self.config, self._rows(step)
        m_block, n_block = place_in_bands(local, config.group_m, ceil_div(rows, config.block_m), config.n_blocks)
        return DenseBlock(m_block, n_block, minimum(rows - m_block * config.block_m, config.block_m))


class GroupedPlan(DensePlan, Protocol):
    """What the order reads of a configuration: that of a dense GEMM for each expert, and how many experts there are."""

    @property
    def num_experts(self) -> int: ...


@dataclass(frozen=True)
class GroupedBlock:
    """One tile of the result.

    expert     num_experts past the last block
    m_block    row block of the expert
    row_block  row block of the matrix in which every expert begins a block of its own
    n_block    column block
    valid_m    rows of the expert in it; 0 or less past the last block
    """

    expert: Int
    m_block: Int
    row_block: Int
    n_block: Int
    valid_m: Int


@dataclass(frozen=True)
class GroupedOrder(NumberedSteps):
    """One step for each expert of the table."""

    config: Any  # GroupedPlan; cutlass.Constexpr in a kernel
    table: Any  # ExpertTable

    @property
    def num_steps(self) -> int:
        return self.config.num_experts

    def sizes(self, part: Int) -> OneSize:
        return OneSize(ceil_div(self.table.tokens(part), self.config.block_m) * self.config.n_blocks)

    def block(self, step: Int, local: Int, sizes: OneSize) -> GroupedBlock:
        """The block, within its expert and within the matrix."""
        config, tokens = self.config, self.table.tokens(step)
        m_block, n_block = place_in_bands(local, config.group_m, ceil_div(tokens, config.block_m), config.n_blocks)
        valid_m = minimum(tokens - m_block * config.block_m, config.block_m)
        return GroupedBlock(step, m_block, self.table.first_block(step) + m_block, n_block, valid_m)

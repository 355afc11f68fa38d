"""Where the rows of each expert lie in a matrix of activations: among the tokens, sorted and packed, or sorted in whole blocks.

A layer routes every token to `topk` experts, so that its GEMMs have tokens x topk rows.  Row i of an expert is found

- *pre-gathered*: at the token that it is a copy of, in the matrix of tokens, which exists once
- *sorted packed*: i rows after the expert's first, which follows the last row of the expert before
- *sorted blocked*: likewise, but every expert begins at a multiple of a block, and the rows up to there are padding

Source: AsteroMoE, "MoE GEMMs".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from .arith import align

MOST_EXPERTS = 1024


@dataclass(frozen=True)
class ExpertRows(ABC):
    """`counts` rows of each expert.  Raises ValueError for more than 1024 experts, or a negative count."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))
        if not 1 <= len(self.counts) <= MOST_EXPERTS:
            raise ValueError(f"counts: {len(self.counts)} experts, must be 1 to {MOST_EXPERTS}")
        if min(self.counts) < 0:
            raise ValueError(f"counts: {min(self.counts)} rows, must be 0 or more")

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows of the matrix, padding included."""

    @abstractmethod
    def row(self, expert: int, index: int) -> int:
        """Row of the matrix where row `index` of an expert lies."""

    @property
    def used(self) -> int:
        """Rows of all experts together, however many of them one row of the matrix stands for."""
        return sum(self.counts)

    def rows(self, expert: int) -> list[int]:
        """Rows of the matrix where an expert's lie, in order."""
        return [self.row(expert, index) for index in range(self.counts[expert])]


@dataclass(frozen=True)
class PackedRows(ExpertRows):
    """Sorted by expert, without padding."""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The row after each expert's last."""
        return tuple(accumulate(self.counts))

    @property
    def num_rows(self) -> int:
        return self.used

    def first_row(self, expert: int) -> int:
        return self.ends[expert] - self.counts[expert]

    def row(self, expert: int, index: int) -> int:
        """So many rows after the expert's first."""
        return self.first_row(expert) + index


@dataclass(frozen=True)
class BlockedRows(ExpertRows):
    """Sorted by expert, each in whole blocks of `block` rows."""

    block: int

    @cached_property
    def _packed(self) -> PackedRows:
        return PackedRows(tuple(align(count, self.block) for count in self.counts))

    @property
    def num_rows(self) -> int:
        return self._packed.num_rows

    @property
    def padding(self) -> int:
        """Rows that belong to no expert."""
        return self.num_rows - self.used

    def first_row(self, expert: int) -> int:
        return self._packed.first_row(expert)

    def row(self, expert: int, index: int) -> int:
        """So many rows after the expert's first."""
        return self.first_row(expert) + index

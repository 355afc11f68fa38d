"""How many tokens each expert has, and where its blocks of rows begin: what the orders of grouped kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..layouts.arith import Int, ceil_div


class ExpertTable(Protocol):
    """Tokens and first block of rows of each expert; the entry after the last expert holds 0 tokens."""

    def tokens(self, expert: Int) -> Int: ...

    def first_block(self, expert: Int) -> Int:
        """The expert's first block of rows, where every expert begins a block of its own."""
        ...


@dataclass(frozen=True)
class HostTable:
    """An expert table from a list of token counts."""

    counts: tuple[int, ...]
    block_m: int

    @classmethod
    def of(cls, counts: Sequence[int], block_m: int) -> HostTable:
        """From the tokens of each expert."""
        return cls(tuple(counts), block_m)

    def tokens(self, expert: int) -> int:
        return (*self.counts, 0)[expert]

    def first_block(self, expert: int) -> int:
        """The expert's first block of rows, where every expert begins a block of its own."""
        return sum(ceil_div(tokens, self.block_m) for tokens in self.counts[:expert])

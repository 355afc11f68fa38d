"""A token's row as the bulk copies that move it: chunks one after another, the last of what is left."""

from __future__ import annotations

from dataclasses import dataclass

from ....layouts.arith import ceil_div


@dataclass(frozen=True)
class RowChunks:
    """A row of `num_bytes` in chunks of `chunk` bytes, both multiples of 16."""

    num_bytes: int
    chunk: int

    @property
    def count(self) -> int:
        return ceil_div(self.num_bytes, self.chunk)

    def start(self, index: int) -> int:
        """Byte of the row that a chunk begins with."""
        return index * self.chunk

    def size(self, index: int) -> int:
        return min(self.chunk, self.num_bytes - self.start(index))

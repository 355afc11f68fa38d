"""16-byte pieces of shared memory, which TMA and the tensor cores move."""

from __future__ import annotations

import numpy as np

from .swizzle import IndexArray

CHUNK = 16


class Chunks:
    """Where a copy or an operand lies: one row of `starts` (byte offsets, multiples of 16) per chunk, and what follows from them.

    Pure functions of an address return the same object for the same arguments, so that all of this is computed once.
    """

    __slots__ = ("_records", "end", "low", "numbers", "starts")

    def __init__(self, starts: IndexArray) -> None:
        self.starts = starts
        self.numbers = starts // CHUNK
        self.low, self.end = int(starts.min()), int(starts.max()) + CHUNK
        self._records: dict[int, IndexArray] = {}

    def __len__(self) -> int:
        return len(self.starts)

    def records(self, grain: int) -> IndexArray:
        """Indices of the chunks in records of `grain` bytes, which divides 16."""
        index = self._records.get(grain)
        if index is None:
            index = self._records[grain] = (self.starts[:, None] // grain + np.arange(CHUNK // grain)).ravel()
        return index

"""16-byte pieces of shared memory, which TMA and the tensor cores move."""

from __future__ import annotations

import numpy as np

from .swizzle import IndexArray

CHUNK = 16


class Chunks:
    """Where a copy or an operand lies: one row of `starts` (byte offsets, multiples of 16) per chunk, and what follows from them.

    Pure functions of an address return the same object for the same arguments, so that all of this is computed once.
    """

    __slots__ = ("_dense", "_records", "end", "low", "numbers", "starts")

    def __init__(self, starts: IndexArray) -> None:
        self.starts = starts
        self.numbers = starts // CHUNK
        self.low, self.end = int(starts.min()), int(starts.max()) + CHUNK
        self._dense = self.end - self.low == CHUNK * len(starts) == CHUNK * len(np.unique(starts))
        self._records: dict[int, IndexArray | slice] = {}

    def __len__(self) -> int:
        return len(self.starts)

    def records(self, shift: int) -> IndexArray | slice:
        """Indices of the chunks in records of 2 ** shift bytes, which divide 16; a slice when there are no gaps."""
        index = self._records.get(shift)
        if index is None:
            if self._dense:
                index = slice(self.low >> shift, self.end >> shift)
            else:
                index = ((self.starts[:, None] >> shift) + np.arange(CHUNK >> shift)).ravel()
            self._records[shift] = index
        return index

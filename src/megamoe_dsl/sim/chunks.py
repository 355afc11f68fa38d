"""Pieces of memory that copies move: 16-byte chunks of shared memory, and equally long rows of global memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]


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


class GlobalRows:
    """Rows of `width` bytes at the addresses `starts`, and what follows from them.

    `low` to `end` covers all of them, and `steps` says where in that each begins. `pitch` is the distance between neighbors, 0 when it
    varies or when they overlap.
    """

    __slots__ = ("_pieces", "end", "low", "pitch", "steps", "unit", "width")

    def __init__(self, starts: IndexArray, width: int) -> None:
        self.width, self.low, self.end = width, int(starts.min()), int(starts.max()) + width
        self.steps = starts - self.low
        distances = np.diff(starts)
        pitch = int(distances[0]) if len(distances) else width
        self.pitch = pitch if pitch >= width and (distances == pitch).all() else 0
        self.unit = CHUNK
        while width % self.unit or (self.steps % self.unit).any():
            self.unit //= 2
        self._pieces: dict[int, IndexArray] = {}

    @property
    def num_bytes(self) -> int:
        return self.width * len(self.steps)

    def of(self, values: NDArray[Any], offset: int) -> NDArray[Any]:
        """The rows, shaped (rows, width), of an array where the lowest begins at `offset`: a view when they have a pitch, else a copy."""
        if self.pitch:
            return np.ndarray((len(self.steps), self.width), values.dtype, values, offset, (self.pitch, 1))
        return values[self.index(offset)]

    def store(self, values: NDArray[Any], offset: int, new: NDArray[Any] | bool) -> None:
        """Replace the rows of an array in which the lowest begins at `offset`."""
        if self.pitch:
            self.of(values, offset)[...] = new
        else:
            values[self.index(offset)] = new

    def index(self, offset: int) -> IndexArray:
        """Where every byte lies, shaped (rows, width)."""
        return (self.steps + offset)[:, None] + np.arange(self.width)

    def places(self, offset: int) -> tuple[IndexArray | slice, int]:
        """The rows as the race detector wants them: one slice when they touch, else aligned pieces and their size."""
        if self.pitch == self.width:
            return slice(offset, offset + self.end - self.low), 1
        unit = self.unit
        while offset % unit:
            unit //= 2
        if (pieces := self._pieces.get(unit)) is None:
            pieces = self._pieces[unit] = (self.steps[:, None] + np.arange(0, self.width, unit)).ravel()
        return pieces + offset, unit

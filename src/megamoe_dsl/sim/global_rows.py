"""Equally long pieces of global memory, which bulk copies move: the rows of a box, or one row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunks import CHUNK
from .swizzle import IndexArray


class GlobalRows:
    """Rows of `width` bytes at the addresses `starts`, and what follows from them.

    `low` to `end` covers all of them, and `steps` says where in that each begins. `pitch` is the distance between neighbours, 0 when it
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

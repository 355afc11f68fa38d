"""Pieces of memory that copies move: 16-byte chunks of shared memory, equally long rows of global memory, and the boxes of TMA.

Source: PTX ISA, "Tensors" (tiled mode, out-of-bound access, swizzling modes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hardware.operand_tile import Swizzle
from ..hardware.tensor_map import TensorMap, TensorMapDtype

IndexArray = NDArray[np.int64]


CHUNK = 16


class Chunks:
    """The 16-byte chunks of a copy or operand: `starts` (byte offsets, multiples of 16) per chunk, and what follows from them.  Pure
    functions of an address return the same object for the same arguments, so that all of this is computed once.  `dense` chunks leave no
    gaps from `low` to `end`."""

    __slots__ = ("dense", "end", "low", "numbers", "starts")

    def __init__(self, starts: IndexArray) -> None:
        self.starts = starts
        self.numbers = starts // CHUNK
        self.low, self.end = (int(starts.min()), int(starts.max()) + CHUNK) if len(starts) else (0, 0)
        self.dense = self.end - self.low == CHUNK * len(starts) == CHUNK * len(np.unique(starts))

    def __len__(self) -> int:
        return len(self.starts)


class GlobalRows:
    """Rows of `width` bytes at the addresses `starts`, and what follows from them.  `low` to `end` covers all of them, and `steps` says
    where in that each begins. `pitch` is the distance between neighbors, 0 when it varies or when they overlap."""

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
        if self.pitch:
            self.of(values, offset)[...] = new
        else:
            values[self.index(offset)] = new

    def index(self, offset: int) -> IndexArray:
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


PADDING_POISON = 0xEE  # Fills the padding bytes that unpacked FP4 leaves in shared memory: hardware does not define them.

GATHERED_ROWS = 4  # Rows of one gather4 or scatter4.

_FP4_CHUNK = 8  # packed bytes of 16 FP4 values; unpacked, they are followed by as many bytes of padding


@dataclass(frozen=True)
class Box:
    """One box of a tensor map at given coordinates."""

    rows: IndexArray  # global address of every in-bounds row (all dimensions but the innermost) at `first` bytes into the row
    row_index: IndexArray  # position of those rows in the box
    first: int  # and last: range of in-bounds bytes inside a row; empty when the box lies outside
    last: int
    row_count: int  # and row_bytes: shape of the box in global-memory bytes, out-of-bounds parts included
    row_bytes: int

    @property
    def empty(self) -> bool:
        return len(self.rows) == 0

    @property
    def whole(self) -> bool:
        return len(self.rows) == self.row_count and self.last - self.first == self.row_bytes

    @cached_property
    def global_rows(self) -> GlobalRows:
        return GlobalRows(self.rows, self.last - self.first)


@lru_cache(maxsize=4096)
def box_at(tensor_map: TensorMap, coordinates: tuple[int, ...]) -> Box:
    """The box of ``tensor_map`` whose first element has these coordinates (innermost first; they may be negative or too large)."""
    outer = tensor_map.box[1:]
    row_count = int(np.prod(outer, dtype=np.int64))
    starts, dims, strides = (np.array(one, np.int64)[:, None] for one in (coordinates[1:], tensor_map.dims[1:], tensor_map.strides))
    places = np.indices(outer[::-1]).reshape(len(outer), row_count)[::-1] + starts
    inside, offset = ((places >= 0) & (places < dims)).all(axis=0), (places * strides).sum(axis=0)
    bits = tensor_map.dtype.bits
    row_bytes = tensor_map.box[0] * bits // 8
    start_byte = coordinates[0] * bits // 8
    first = min(max(0, -start_byte), row_bytes)
    last = max(first, min(row_bytes, tensor_map.dims[0] * bits // 8 - start_byte))
    row_index = np.nonzero(inside)[0] if last > first else np.zeros(0, np.int64)
    return Box(tensor_map.address + offset[row_index] + start_byte + first, row_index, first, last, row_count, row_bytes)


def boxes_at(tensor_map: TensorMap, coordinates: tuple[int, ...]) -> list[Box]:
    """The boxes of one copy: one at as many coordinates as dimensions, or one per row of (column, row 0, ... row 3)."""
    if len(coordinates) == tensor_map.rank:
        return [box_at(tensor_map, coordinates)]
    return [box_at(tensor_map, (coordinates[0], row)) for row in coordinates[1:]]


@lru_cache(maxsize=4096)
def shared_chunks(start: int, num_bytes: int, span: int = 0) -> Chunks:
    """The 16-byte chunks of a copy, in its order; swizzles, which have a span, move whole chunks."""
    return Chunks(Swizzle(span)(start + np.arange(0, num_bytes, CHUNK)))


def to_shared_format(tensor_map: TensorMap, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Box bytes as shared memory holds them: unpacked FP4 gains its padding, everything else is unchanged."""
    if tensor_map.dtype is not TensorMapDtype.FP4_UNPACKED:
        return rows.reshape(-1)
    padded = np.full((rows.size // _FP4_CHUNK, 2, _FP4_CHUNK), PADDING_POISON, np.uint8)
    padded[:, 0] = rows.reshape(-1, _FP4_CHUNK)
    return padded.reshape(-1)

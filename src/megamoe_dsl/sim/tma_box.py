"""Which bytes a TMA box touches in global and in shared memory.

Pure address arithmetic over a :class:`~megamoe_dsl.hardware.tensor_map.TensorMap`: no memory is accessed here.
Source: PTX ISA, "Tensors" (tiled mode, out-of-bound access, swizzling modes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ..hardware.operand_tile import Swizzle
from ..hardware.tensor_map import TensorMap, TensorMapDtype
from .chunks import CHUNK, Chunks, GlobalRows, IndexArray

PADDING_POISON = 0xEE
"""Fills the padding bytes that unpacked FP4 leaves in shared memory: hardware does not define them."""

GATHERED_ROWS = 4
"""Rows of one gather4 or scatter4."""

_FP4_CHUNK = 8  # packed bytes of 16 FP4 values; unpacked, they are followed by as many bytes of padding


@dataclass(frozen=True)
class Box:
    """One box of a tensor map at given coordinates.

    rows                  global address of every in-bounds row (all dimensions but the innermost) at `first` bytes into the row
    row_index             position of those rows in the box
    first, last           range of in-bounds bytes inside a row; empty when the box lies outside
    row_count, row_bytes  shape of the box in global-memory bytes, out-of-bounds parts included
    """

    rows: IndexArray
    row_index: IndexArray
    first: int
    last: int
    row_count: int
    row_bytes: int

    @property
    def empty(self) -> bool:
        """True when no byte of the box lies inside the tensor."""
        return len(self.rows) == 0

    @property
    def whole(self) -> bool:
        """True when all of the box lies inside the tensor."""
        return len(self.rows) == self.row_count and self.last - self.first == self.row_bytes

    @cached_property
    def global_rows(self) -> GlobalRows:
        """The in-bounds parts of its rows."""
        return GlobalRows(self.rows, self.last - self.first)


@lru_cache(maxsize=4096)
def box_at(tensor_map: TensorMap, coordinates: tuple[int, ...]) -> Box:
    """The box of ``tensor_map`` whose first element has these coordinates (innermost first; they may be negative or too large)."""
    outer = tensor_map.box[1:]
    row_count = int(np.prod(outer, dtype=np.int64))
    offset = np.zeros(row_count, np.int64)
    inside = np.ones(row_count, bool)
    period = 1
    row = np.arange(row_count)
    for extent, start, dim, stride in zip(outer, coordinates[1:], tensor_map.dims[1:], tensor_map.strides, strict=True):
        coordinate = (row // period) % extent + start
        inside &= (coordinate >= 0) & (coordinate < dim)
        offset += coordinate * stride
        period *= extent
    bits = tensor_map.dtype.bits
    row_bytes = tensor_map.box[0] * bits // 8
    start_byte = coordinates[0] * bits // 8
    first = min(max(0, -start_byte), row_bytes)
    last = max(first, min(row_bytes, tensor_map.dims[0] * bits // 8 - start_byte))
    row_index = np.nonzero(inside)[0] if last > first else np.zeros(0, np.int64)
    return Box(tensor_map.address + offset[row_index] + start_byte + first, row_index, first, last, row_count, row_bytes)


def box_count(tensor_map: TensorMap, coordinates: tuple[int, ...]) -> int:
    """How many boxes one copy has."""
    return 1 if len(coordinates) == tensor_map.rank else GATHERED_ROWS


def boxes_at(tensor_map: TensorMap, coordinates: tuple[int, ...]) -> list[Box]:
    """The boxes of one copy: one at as many coordinates as dimensions, or one per row of (column, row 0, ... row 3)."""
    if len(coordinates) == tensor_map.rank:
        return [box_at(tensor_map, coordinates)]
    return [box_at(tensor_map, (coordinates[0], row)) for row in coordinates[1:]]


@lru_cache(maxsize=1024)
def shared_chunks(start: int, box_bytes: int, span: int) -> Chunks:
    """The 16-byte chunks of a box in box order; swizzles move whole chunks."""
    return Chunks(Swizzle(span)(start + np.arange(0, box_bytes, CHUNK)))


def to_shared_format(tensor_map: TensorMap, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Box bytes as shared memory holds them: unpacked FP4 gains its padding, everything else is unchanged."""
    if tensor_map.dtype is not TensorMapDtype.FP4_UNPACKED:
        return rows.reshape(-1)
    padded = np.full((rows.size // _FP4_CHUNK, 2, _FP4_CHUNK), PADDING_POISON, np.uint8)
    padded[:, 0] = rows.reshape(-1, _FP4_CHUNK)
    return padded.reshape(-1)

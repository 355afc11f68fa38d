"""A result on its way back: what Linear2 gives for one token and top-k slot, as it lies in the combine buffer of the token's rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....layouts.arith import Int, align
from ....recipe import Format
from .tile import TILE_ROWS

LINE = 128  # bytes: a row with scales takes whole lines, so that the values of a tile, 128 bytes or 256, come in whole lines too
BULK = 16  # bytes: bulk copies move multiples


@dataclass(frozen=True)
class CombineRow:
    """`hidden` values, then, where the format has any, their scales, a byte each."""

    hidden: int
    format: Format

    @property
    def scaled(self) -> bool:
        return self.format.scale is not None

    def holds(self, byte: Int) -> Any:
        """Whether this byte of a tile of Linear2, counted in the row, is one of the row's values: rows of weights that fill the last tile
        up give others.  Python's True where no tile has such."""
        return True if self.hidden % TILE_ROWS == 0 else byte < self.first_scale

    @property
    def value_bytes(self) -> int:
        return self.format.element_bits // 8

    @property
    def first_scale(self) -> int:
        """Byte of the row's first scale."""
        return self.format.row_bytes(self.hidden)

    @property
    def scale_bytes(self) -> int:
        """Bytes of all scales, and what a bulk copy of them moves besides; 0 without scales."""
        return align(self.format.scales_of(self.hidden), BULK) if self.scaled else 0

    @property
    def num_bytes(self) -> int:
        """From one row to the next."""
        return align(self.first_scale + self.scale_bytes, LINE) if self.scaled else self.first_scale

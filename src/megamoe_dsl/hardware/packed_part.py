"""A part of a packed tile (packed_tile.py) as a stage of a ring has it: codes of some of its rows, then the records that these need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..layouts.arith import Int, div
from .packed_tile import CODE_BYTES, LINE_BYTES, RECORDS_BYTES, TILE_LINES, TILE_ROWS

GROUP_ROWS = 128
BLOCK_ROWS = 64


@dataclass(frozen=True)
class PackedPart:
    """`rows` of a tile: all 256, a group of 128, or a block of 64, whose records are those of its group."""

    rows: int

    @property
    def code_lines(self) -> int:
        """Lines of 128 bytes, as TMA sees them, that the codes take."""
        return CODE_BYTES // LINE_BYTES * self.rows // TILE_ROWS

    @property
    def record_lines(self) -> int:
        return RECORDS_BYTES // LINE_BYTES * self.groups * GROUP_ROWS // TILE_ROWS

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes, after which a stage has its records."""
        return self.code_lines * LINE_BYTES

    @property
    def num_bytes(self) -> int:
        return (self.code_lines + self.record_lines) * LINE_BYTES

    @property
    def groups(self) -> int:
        return max(self.rows, GROUP_ROWS) // GROUP_ROWS

    @property
    def per_tile(self) -> int:
        """Such parts of a tile."""
        return TILE_ROWS // self.rows

    def first_lines(self, number: Int, k_blocks: int) -> tuple[Any, Any]:
        """Where codes and records of part `number` of a matrix's rows begin: lines from its first, for the first of `k_blocks` of K; those
        of the next K block are `TILE_LINES` further."""
        place = number & (self.per_tile - 1)
        tile = div(number, self.per_tile) * (k_blocks * TILE_LINES)
        group = div(place * self.rows, GROUP_ROWS)
        return tile + place * self.code_lines, tile + CODE_BYTES // LINE_BYTES + group * PackedPart(GROUP_ROWS).record_lines

    def block_of_group(self, number: Int) -> Any:
        """Which block of its group a part of 64 rows is: the first or the second."""
        return number & (GROUP_ROWS // BLOCK_ROWS - 1)


WHOLE_TILE, GROUP = PackedPart(TILE_ROWS), PackedPart(GROUP_ROWS)


def tiles_of(rows: int) -> int:
    """Packed tiles of so many rows of a matrix, of which the last may have fewer."""
    return -(-rows // TILE_ROWS)

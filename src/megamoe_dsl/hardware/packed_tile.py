"""A packed tile of E2M1 weights for SM90: 256 rows by 128 of K, in the order in which math threads read it, without shuffles.

Weights are the wgmma's A, from registers.  In both blocks of 64 rows a thread has rows `row` and `row + 8` of its warp's 16 rows, and
of each row two runs of 4 values in each of four steps of 32 of K.  The tile consists of

| bytes | order | what |
|---|---|---|
| codes   | group 2, block 2, half 2, unit 128, 16 bytes | a unit: four words, for two steps of K and two rows; a word has eight values |
| records | group 2, warp 4, row 8, 16 bytes | a record: what the four threads of a quad share for their rows in both blocks |

A thread has its own unit, in an order (`unit_of`) without bank conflicts for `ld.shared.v4` and `ldmatrix`.  In a word bits 0 to 2 of each
nibble are a selector of `prmt`: the lower four nibbles select the first four values, the upper four the others.  Bit 8 j + 7 is the sign of
value j of the first four, bit 8 j + 3 that of the others.  The first four are the first run in row `row`, the second run in row `row + 8`.

A record is four words.  The first two have the shifts of one block each: bits 3 to 6 of byte n are 8 times the shift of step n for row
`row`, and, of the word rotated right by 4, for row `row + 8`.  The third word is the tile's FP32 scale, the fourth the UE8M0 exponents of
four rows, block by block.  A weight is the table's E4M3 value, times 2^exponent of its row, times the scale.

Sources: PTX ISA, "Register Fragments for wgmma.mma_async", "prmt".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..layouts.arith import Int, div

TILE_ROWS = 256
TILE_K = 128
CODE_BYTES = TILE_ROWS * TILE_K // 2
HALF_BYTES = 128 * 16  # of codes: two steps of K of 64 rows
RECORD_BYTES = 16
SCALE_OFFSET, EXPONENTS_OFFSET = 8, 12  # of the tile's scale and of the rows' powers of two in a record
RECORDS_BYTES = TILE_ROWS // 4 * RECORD_BYTES
TILE_BYTES = CODE_BYTES + RECORDS_BYTES
LINE_BYTES = 128  # TMA sees the tile as rows of so many bytes
TILE_LINES = TILE_BYTES // LINE_BYTES

SHIFT_MASK = 0x78787878  # of a record's word of shifts: those of the first row

HIGHEST = 6  # power of two of shift 0: 6 * 2^6 = 384 is an E4M3 number, 6 * 2^7 is none
SHIFTS = 15  # shifts 0 to 14, each a factor of 2 less: 0.5 * 2^(6 - 14) is the smallest E4M3 number
TINY_BITS = 0x44444444
"""Bits of `word & (word << 1)`, for a record's word of shifts, that are set if a shift is 12 or more: it makes subnormal E4M3 numbers."""
ENTRY_BYTES = 8  # of the table of decoded values: E4M3 of the eight E2M1 magnitudes, for each shift


def unit_of(lane: Int) -> Int:
    """Index among a warp's 32 units of the unit of thread `lane`, whose `row` is lane / 4."""
    return lane ^ (lane >> 3)


def record_index(group: Int, warp: Int, row: Int) -> Int:
    """Index among a tile's records of the record for rows `row` and `row + 8` of a warp's 16, in both blocks of a group."""
    return (group * 4 + warp) * 8 + row


GROUP_ROWS = 128
BLOCK_ROWS = 64


@dataclass(frozen=True)
class PackedPart:
    """A part of a tile: `rows` is 256 (all), 128 (a group) or 64 (a block; its records are those of its group)."""

    rows: int

    @property
    def code_lines(self) -> int:
        return CODE_BYTES // LINE_BYTES * self.rows // TILE_ROWS

    @property
    def record_lines(self) -> int:
        return RECORDS_BYTES // LINE_BYTES * self.groups * GROUP_ROWS // TILE_ROWS

    @property
    def code_bytes(self) -> int:
        return self.code_lines * LINE_BYTES

    @property
    def num_bytes(self) -> int:
        return (self.code_lines + self.record_lines) * LINE_BYTES

    @property
    def groups(self) -> int:
        return max(self.rows, GROUP_ROWS) // GROUP_ROWS

    @property
    def per_tile(self) -> int:
        return TILE_ROWS // self.rows

    def first_lines(self, number: Int, k_blocks: int) -> tuple[Any, Any]:
        """First lines of the codes and of the records of part `number` of a matrix, in its first K block of `k_blocks`; those of the next K
        block are `TILE_LINES` further."""
        place = number & (self.per_tile - 1)
        tile = div(number, self.per_tile) * (k_blocks * TILE_LINES)
        group = div(place * self.rows, GROUP_ROWS)
        return tile + place * self.code_lines, tile + CODE_BYTES // LINE_BYTES + group * PackedPart(GROUP_ROWS).record_lines

    def block_of_group(self, number: Int) -> Any:
        return number & (GROUP_ROWS // BLOCK_ROWS - 1)


WHOLE_TILE, GROUP = PackedPart(TILE_ROWS), PackedPart(GROUP_ROWS)


def tiles_of(rows: int) -> int:
    return -(-rows // TILE_ROWS)


def lines_of(rows: int, k_blocks: int) -> int:
    return tiles_of(rows) * k_blocks * TILE_LINES

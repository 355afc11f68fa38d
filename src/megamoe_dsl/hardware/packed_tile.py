"""A tile of E2M1 weights for SM90: 256 rows by 128 of K as the threads that multiply read it, each its own bytes and no shuffle.

Weights are the wgmma's A and come from registers.  A thread has, of each of two blocks of 64 rows, rows `row` and `row + 8` of its warp's
16 and in each of four steps of 32 of K two runs of 4.  The tile is

| bytes | order | what |
|---|---|---|
| codes   | group 2, block 2, half 2, unit 128, 16 | four words: of two steps of K each two rows; a word is eight values |
| records | group 2, warp 4, row 8, 16 | what the four threads of two blocks' rows share |

A unit of 16 bytes is a thread's; those of a warp lie so (`unit_of`) that neither `ld.shared.v4` nor `ldmatrix` meets bank conflicts.  A
word has the selectors of two `prmt` in bits 0 to 2 of its nibbles, four values each, and between them the signs: of value j of the first
four in bit 8 j + 7, of the second in bit 8 j + 3.  The first four are the first run in row `row`, and the second run in row `row + 8`.

A record is four words.  Two have the shifts of a block of 64 rows: bits 3 to 6 of byte n are the shift of step n of the first row, times 8,
and rotated left by 4 those of the second.  The third is the tile's scale, FP32, and the fourth has the exponents of four rows as UE8M0
bytes, block by block.  What a byte of the table stands for, times 2^(exponent of the row) times the scale, is the weight.

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
"""Of `word & (word << 1)`, where the word has a record's shifts: some shift is 12 or more, which makes subnormal E4M3 numbers."""
ENTRY_BYTES = 8  # of the table of decoded values: E4M3 of the eight E2M1 magnitudes, for each shift


def unit_of(lane: Int) -> Int:
    """Which of a warp's 32 units is that of thread `lane`, which has row `lane / 4`."""
    return lane ^ (lane >> 3)


def record_index(group: Int, warp: Int, row: Int) -> Int:
    """Which of a tile's records has rows `row` and `row + 8` of a warp's 16 in both of a group's blocks."""
    return (group * 4 + warp) * 8 + row


GROUP_ROWS = 128
BLOCK_ROWS = 64


@dataclass(frozen=True)
class PackedPart:
    """`rows` of a tile: all 256, a group of 128, or a block of 64, whose records are those of its group."""

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
        """Where codes and records of part `number` of a matrix's rows begin: lines from its first, for the first of `k_blocks` of K; those
        of the next K block are `TILE_LINES` further."""
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

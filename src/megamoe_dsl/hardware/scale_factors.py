"""Orders of UE8M0 scale factors (SM100_FACTS, UTCCP; PTX ISA tcgen05.cp and the scale-factor layouts of tcgen05.mma).

K-major: one byte per 32 channels, row by row, as quantization writes them.
M-major: one 32-bit word per row and 128 channels (byte b scales channels 32b to 32b + 31), words of all rows adjacent.
UTCCP order: M-major, the 128 rows of an atom transposed 4 x 32, so that `tcgen05.cp.32x128b` lands row m in lane m % 32, column m / 32.
"""

from __future__ import annotations

from ..layouts.arith import Int

SF_ATOM_ROWS = 128  # UTCCP moves scales in atoms of 128 rows
CHANNELS_PER_SCALE = 32
CHANNELS_PER_WORD = 128
SCALES_PER_WORD = 4
SF_ATOM_BYTES = SF_ATOM_ROWS * 4
SF_ROW_BYTES = 16  # from a row's word to the next row's, inside a quarter of an atom


def utccp_row(row: Int) -> Int:
    """Word index of a row, inside its run of whole atoms: atom base + (row % 32) * 4 + (row / 32) % 4."""
    return (row & -SF_ATOM_ROWS) + (row & 31) * 4 + ((row >> 5) & 3)


def pool_sf_row(pool_block: Int, row_in_block: Int, sf_block_m: int) -> Int:
    """Word index of a pool row in an M-major pool scale buffer whose blocks take `sf_block_m` words each."""
    return pool_block * sf_block_m + utccp_row(row_in_block)

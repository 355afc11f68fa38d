"""Thread-value layouts: which element of a matrix each register of each thread holds.

All of them come from one 8x8 matrix, `CORE`: thread t has row t / 4 and columns 2 (t % 4) and 2 (t % 4) + 1.  A fragment is that matrix
read through the strides of its target, and repeated.

Sources: PTX ISA, "Data Movement Shape" (tcgen05.ld), "stmatrix", "Register Fragments for wgmma.mma_async"; SM100_FACTS.
"""

from __future__ import annotations

from ..layouts.algebra import Layout, composition, join

CORE = Layout(((4, 8), 2), ((16, 1), 8))
"""(thread, value) -> row + 8 * column of an 8x8 matrix."""

WINDOW = 32  # TMEM lanes that a warp can reach


def core_matrix(row: int, column: int) -> Layout:
    """`CORE` in a target whose rows are `row` apart and whose columns are `column` apart."""
    return composition(Layout((8, 8), (row, column)), CORE)


def repeat_values(fragment: Layout, *modes: Layout) -> Layout:
    """The fragment with more values per thread, repeated as the modes say: (thread, (value, *modes))."""
    return join(fragment[0], join(fragment[1], *modes))


def tmem_16x256b(repeats: int) -> Layout:
    """tcgen05.ld.16x256b.xN: (thread, (q, h, n)) -> lane + 32 * column; register 4 n + 2 h + q.

    Two core matrices above each other (h) are 8 columns wide; n repeats them to the right.
    """
    return repeat_values(core_matrix(1, WINDOW), Layout(2, 8), Layout(repeats, 8 * WINDOW))


def stmatrix_b8(tiles: int) -> Layout:
    """stmatrix.m16n8.xN.trans.b8: (thread, (q, h, word)) -> byte + 16 * (column + 8 * tile); byte 2 h + q of the word.

    Column c of tile k is the 16 bytes at the address that lane 8 k + c gives.
    """
    return repeat_values(core_matrix(1, 16), Layout(2, 8), Layout(tiles, 128))

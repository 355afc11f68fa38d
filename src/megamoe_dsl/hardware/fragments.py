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


def tmem_32x32b(repeats: int) -> Layout:
    """tcgen05.ld.32x32b.xN: (thread, register) -> lane + 32 * column.  Thread t has lane t, register j column j."""
    return Layout((WINDOW, repeats), (1, WINDOW))


def tmem_16x256b(repeats: int) -> Layout:
    """tcgen05.ld.16x256b.xN: (thread, (q, h, n)) -> lane + 32 * column; register 4 n + 2 h + q.

    Two core matrices above each other (h) are 8 columns wide; n repeats them to the right.
    """
    return repeat_values(core_matrix(1, WINDOW), Layout(2, 8), Layout(repeats, 8 * WINDOW))


def load_columns(groups: int) -> Layout:
    """`device.tcgen05.load_columns`: (thread, (q, h, s, g)) -> lane + 32 * column; value 4 s + 2 h + q of tuple g.

    Two 16x256b.xN loads, the second (s) 16 lanes below the first.
    """
    half = tmem_16x256b(groups)
    q, h, g = half[1].modes
    return join(half[0], join(q, h, Layout(2, 16), g))


def stmatrix_b16(tiles: int, *, transposed: bool) -> Layout:
    """stmatrix.m8n8.xN[.trans].b16: (thread, (half of the word, word)) -> element + 8 * (row + 8 * tile).

    Row r of tile k is the 16 bytes at the address that lane 8 k + r gives.
    """
    core = core_matrix(1, 8) if transposed else core_matrix(8, 1)
    return repeat_values(core, Layout(tiles, 64))


def stmatrix_b8(tiles: int) -> Layout:
    """stmatrix.m16n8.xN.trans.b8: (thread, (q, h, word)) -> byte + 16 * (column + 8 * tile); byte 2 h + q of the word.

    Column c of tile k is the 16 bytes at the address that lane 8 k + c gives.
    """
    return repeat_values(core_matrix(1, 16), Layout(2, 8), Layout(tiles, 128))


def wgmma_accumulator(n: int) -> Layout:
    """D of wgmma.m64nNk*: (thread of the warpgroup, (q, h, j)) -> row + 64 * column; register 4 j + 2 h + q.

    Each warp has 16 rows.  Raises ValueError unless n is a multiple of 8 from 8 to 256.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n = {n}: must be a multiple of 8 from 8 to 256")
    core = core_matrix(1, 64)
    threads = Layout((*_pair(core[0].shape), 4), (*_pair(core[0].stride), 16))
    return repeat_values(join(threads, core[1]), Layout(2, 8), Layout(n // 8, 8 * 64))


def _pair(value: object) -> tuple[int, int]:
    assert isinstance(value, tuple)
    return value[0], value[1]

"""Layouts for pictures and proofs: which element each register of each thread holds, atoms of operands and scale factors, bank
conflicts.

All fragments come from one 8x8 matrix, `CORE`: thread t has row t / 4 and columns 2 (t % 4) and 2 (t % 4) + 1.  A fragment is that
matrix read through the strides of its target, and repeated.

Shared memory has 32 banks of 4 bytes.  A warp's access of 4 bytes a lane is one request, of 8 bytes two (half warps), of 16 bytes four
(quarter warps); a request takes as many wavefronts as the busiest bank has distinct words.  A matrix instruction is one request per
tile of eight 16-byte rows.

Sources: PTX ISA, "Data Movement Shape" (tcgen05.ld), "stmatrix", "Register Fragments for wgmma.mma_async"; SM100_FACTS; CUDA C++
programming guide, "Shared Memory"; NVIDIA profiling guide, "Shared memory".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..layouts.algebra import ComposedLayout, Layout, composition, identity, join, row_major, swizzled
from .operand_tile import CORE_ROWS, SF_ATOM_ROWS, Swizzle

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


QUARTER = 32  # lanes of a TMEM quarter; every quarter holds the same scales
COLUMNS = SF_ATOM_ROWS // QUARTER


def swizzle_atom(span: int) -> ComposedLayout:
    """(row, byte) -> byte of the 8-row block that a swizzle of `span` bytes permutes."""
    return swizzled(Swizzle(span), Layout((CORE_ROWS, span), (span, 1)))


def utccp_source() -> Layout:
    """(lane, column) -> word: tcgen05.cp.32x128b reads 16 bytes a lane, one after another."""
    return row_major(QUARTER, COLUMNS)


def utccp_atom() -> Layout:
    """Row -> word of an atom: the row's place in TMEM, counted in the order in which UTCCP reads its source."""
    return composition(utccp_source(), identity(SF_ATOM_ROWS))


BANKS = 32
BANK_BYTES = 4
REQUEST_BYTES = BANKS * BANK_BYTES


def wavefronts(addresses: Sequence[int], width: int) -> int:
    """Wavefronts of an access of `width` bytes (4, 8 or 16) by each of the lanes, in lane order.  Raises ValueError when an address is not
    aligned."""
    if any(address % width for address in addresses):
        raise ValueError(f"an address is not a multiple of {width}")
    lanes = REQUEST_BYTES // width
    return sum(_request(addresses[i : i + lanes], width) for i in range(0, len(addresses), lanes))


def _request(addresses: Sequence[int], width: int) -> int:
    words = {(address + i) // BANK_BYTES for address in addresses for i in range(0, width, BANK_BYTES)}
    return max(Counter(word % BANKS for word in words).values())

"""The orders of `scale_factors` as algebraic objects: from the TMEM place of a scale to the byte that UTCCP takes it from.

Source: PTX ISA, tcgen05.cp and the scale-factor layouts of tcgen05.mma; SM100_FACTS (UTCCP, scale factors in TMEM).
"""

from __future__ import annotations

from ..layouts.algebra import Layout, composition, identity, join, logical_product, row_major
from .scale_factors import SF_ATOM_ROWS
from .tmem import TMEM_LANES

QUARTER = 32  # lanes of a TMEM quarter; every quarter holds the same scales
COLUMNS = SF_ATOM_ROWS // QUARTER
SCALES_PER_WORD = 4


def tmem_scales() -> Layout:
    """((row % 32, row / 32), quarter) -> lane + 128 * column: row m in lane m % 32 of every quarter, column m / 32."""
    return Layout(((QUARTER, COLUMNS), TMEM_LANES // QUARTER), ((1, TMEM_LANES), QUARTER))


def utccp_source() -> Layout:
    """(lane, column) -> word: tcgen05.cp.32x128b reads 16 bytes a lane, one after another."""
    return row_major(QUARTER, COLUMNS)


def utccp_atom() -> Layout:
    """Row -> word of an atom: the row's place in TMEM, counted in the order in which UTCCP reads its source."""
    return composition(utccp_source(), identity(SF_ATOM_ROWS))


def utccp_order(rows: int) -> Layout:
    """(row % 128, row / 128) -> word of a run of whole atoms; `rows` is a multiple of 128."""
    return logical_product(utccp_atom(), Layout(rows // SF_ATOM_ROWS))


def scale_bytes(rows: int) -> Layout:
    """(row, k) -> byte: the four scales of a row and 128 channels share its word, lowest k first."""
    words = utccp_order(rows)
    return join(composition(Layout(words.size, SCALES_PER_WORD), words), Layout(SCALES_PER_WORD))


def pool_scales(pool_blocks: int, sf_block_m: int, k_words: int, pitch: int) -> Layout:
    """(row of the block, pool block, word of K) -> word of an M-major pool scale buffer with `pitch` words per word of K."""
    return join(utccp_order(sf_block_m), Layout(pool_blocks, sf_block_m), Layout(k_words, pitch))


def weight_scales(rows: int, k_words: int, experts: int) -> Layout:
    """(row, word of K, expert) -> word of the transformed weight scales [experts * k_words, rows]."""
    return logical_product(utccp_order(rows), Layout((k_words, experts)))

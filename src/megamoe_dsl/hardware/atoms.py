"""Atoms of operands and of scale factors as layouts of the algebra: for pictures and proofs; kernels have them as arithmetic."""

from __future__ import annotations

from ..layouts.algebra import ComposedLayout, Layout, composition, identity, row_major, swizzled
from .operand_tile import CORE_ROWS
from .scale_factors import SF_ATOM_ROWS
from .swizzle import Swizzle

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

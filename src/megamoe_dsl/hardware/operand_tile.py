"""Operand tiles in shared memory: K-major rows of 128 bytes under a swizzle, as TMA writes them and the tensor core reads them.

Sources: PTX ISA, "Shared memory descriptor" and "Canonical Layouts"; SM100_FACTS (SMEM descriptor, swizzle, unpacked FP4).
"""

from __future__ import annotations

from ..layouts.algebra import ComposedLayout, Layout, composition, join, logical_product, swizzled
from .swizzle import Swizzle

CORE_ROWS = 8
ROW_VALUES = 128  # E2M1 values of an unpacked row
ROW_BYTES = 128
"""Bytes of K of a stage, whatever its elements: a row of an operand, the span of its swizzle."""
BLOCK_K = ROW_BYTES
"""K elements of a stage of E4M3, and of one 32-bit word of scales."""
OPERAND_ALIGNMENT = 1024
"""Bytes: of SW128 operands, eight rows of 128 bytes."""
MMA_K_BYTES = 32
"""Bytes of K that one MMA takes."""


def swizzle_atom(span: int) -> ComposedLayout:
    """(row, byte) -> byte of the 8-row block that a swizzle of `span` bytes permutes."""
    return swizzled(Swizzle(span), Layout((CORE_ROWS, span), (span, 1)))


def operand_tile(rows: int, span: int = 128) -> ComposedLayout:
    """((row % 8, row / 8), byte) -> byte offset of a K-major tile `span` bytes wide: swizzle atoms stacked along the rows.

    `rows` is a multiple of 8.  The tile starts at a multiple of the swizzle's period.
    """
    atom = swizzle_atom(span)
    stacked = logical_product(atom.inner, Layout(rows // CORE_ROWS))
    (row, byte), block = stacked[0].modes, stacked[1]
    return ComposedLayout(atom.outer, 0, join(join(row, block), byte))


def k_step(tile: ComposedLayout, step: int) -> ComposedLayout:
    """(row, byte) -> byte offset of the 32 bytes of K that MMA number `step` takes: the descriptor's start moves inside the atom."""
    part = composition(tile, (None, Layout(MMA_K_BYTES)))
    return ComposedLayout(part.outer, part.offset + step * MMA_K_BYTES, part.inner)


def unpacked_fp4_row() -> Layout:
    """(nibble of 16, group) -> nibble of a row of 128 E2M1 values: 8 packed bytes, then 8 of padding, in every 16."""
    return Layout((16, ROW_VALUES // 16), (1, 32))

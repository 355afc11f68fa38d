"""Operand tiles in shared memory: K-major rows of 128 bytes under a swizzle, as TMA writes them and the tensor core reads them.

Sources: PTX ISA, "Shared memory descriptor" and "Canonical Layouts"; SM100_FACTS (SMEM descriptor, swizzle, unpacked FP4).
"""

from __future__ import annotations

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

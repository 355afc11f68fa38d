"""XOR swizzles of shared memory (PTX ISA, tensor-map swizzle modes; SM100_FACTS): 16-byte chunks permuted inside a row of 8 rows.

A swizzle acts on the byte address, so its buffer must be aligned to `8 * span` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..layouts.arith import Int

CHUNK = 16  # bytes that move together


@dataclass(frozen=True)
class Swizzle:
    """`span` is 32, 64 or 128 bytes, or 0 for none."""

    span: int

    def __post_init__(self) -> None:
        if self.span not in (0, 32, 64, 128):
            raise ValueError(f"span = {self.span}: must be 0, 32, 64 or 128")

    @property
    def mask(self) -> int:
        """Largest value XORed into the chunk index."""
        return max(self.span // CHUNK - 1, 0)

    @property
    def alignment(self) -> int:
        """Bytes that a tile must start at a multiple of: its pattern repeats after 8 rows."""
        return max(8 * self.span, CHUNK)

    def __call__(self, address: Int) -> Int:
        """Swizzled byte address; an involution."""
        return address ^ (((address >> 7) & self.mask) << 4)

    def chunk(self, index: Int, row: Int) -> Int:
        """Byte of a row of `span` bytes where its 16-byte chunk `index` lies."""
        return ((index ^ row) & self.mask) << 4


SW32 = Swizzle(32)
SW64 = Swizzle(64)
SW128 = Swizzle(128)

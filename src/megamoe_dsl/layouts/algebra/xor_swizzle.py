"""XOR swizzles as functions of an index, for any element size.

`layouts.swizzle.Swizzle` is the same on byte addresses, named by its span; `XorSwizzle.of_span` relates the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arith import Int
from .int_tuple import AlgebraError


@dataclass(frozen=True)
class XorSwizzle:
    """Bits [base + shift, base + shift + bits) of an index are XORed into bits [base, base + bits).

    Post-conditions: an involution; a permutation of every aligned block of 2^(base + shift + bits) indices; runs of 2^base indices stay
    together.
    Source: CuTe, `Swizzle<BBits, MBase, SShift>` with a positive shift.  Raises `AlgebraError` unless 0 <= bits <= shift, base >= 0.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.base < 0 or not 0 <= self.bits <= self.shift:
            raise AlgebraError(f"{self}: needs base >= 0 and 0 <= bits <= shift")

    def __call__(self, index: Int) -> Int:
        return index ^ (((index >> (self.base + self.shift)) & ((1 << self.bits) - 1)) << self.base)

    @property
    def period(self) -> int:
        """Size of the blocks that are permuted, and the alignment that a buffer needs."""
        return 1 << (self.base + self.shift + self.bits)

    def recast(self, from_bytes: int, to_bytes: int) -> XorSwizzle:
        """The same permutation of memory, for indices that count elements of another size (powers of two).

        Raises `AlgebraError` when the new element is larger than the runs that stay together.
        """
        steps = from_bytes.bit_length() - to_bytes.bit_length()
        return XorSwizzle(self.bits, self.base + steps, self.shift)

    @classmethod
    def of_span(cls, span: int, itemsize: int = 1) -> XorSwizzle:
        """The shared-memory swizzle of rows of `span` bytes (0, 32, 64, 128) on elements of `itemsize` bytes, up to 16."""
        bits = {0: 0, 32: 1, 64: 2, 128: 3}[span]
        return cls(bits, 4, 3).recast(1, itemsize)

    def __str__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"

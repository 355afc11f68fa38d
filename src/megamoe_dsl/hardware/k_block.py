"""The K of a stage of operands whose scales the tensor core applies (SM100): how many channels, and how they lie in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from .operand_tile import BLOCK_K
from .scale_factors import CHANNELS_PER_WORD


@dataclass(frozen=True)
class KBlock:
    """K of a stage.

    channels   a multiple of 128: a row has one word of scales per 128
    row_bytes  of an operand's row in shared memory, the span of its swizzle.  TMA moves as far along the row for the next stage: counted in
               bytes, or in values of unpacked FP4, which take a byte each
    """

    channels: int
    row_bytes: int

    @property
    def words(self) -> int:
        """Words of scales of a row."""
        return self.channels // CHANNELS_PER_WORD


BYTE_VALUES = KBlock(BLOCK_K, BLOCK_K)
"""A byte per value: E4M3, and E2M1 that TMA unpacks."""


def packed_values(channels: int) -> KBlock:
    """Two E2M1 values in a byte."""
    return KBlock(channels, channels // 2)

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
    weight_bits  of a weight in memory
    """

    channels: int
    row_bytes: int
    weight_bits: int = 4

    @property
    def weight_row_bytes(self) -> int:
        """Of a row of weights in memory."""
        return self.channels * self.weight_bits // 8

    @property
    def unpacks(self) -> bool:
        """Whether TMA makes a byte of each weight."""
        return self.weight_row_bytes < self.row_bytes

    @property
    def words(self) -> int:
        """Words of scales of a row."""
        return self.channels // CHANNELS_PER_WORD


BYTE_VALUES = KBlock(BLOCK_K, BLOCK_K)
"""A byte per value: E4M3 tokens, and E2M1 weights that TMA unpacks."""
ALL_BYTES = KBlock(BLOCK_K, BLOCK_K, 8)
"""E4M3 weights, too."""


def packed_values(channels: int) -> KBlock:
    """Two E2M1 values in a byte."""
    return KBlock(channels, channels // 2)

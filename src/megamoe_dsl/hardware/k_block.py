"""The K of a stage of operands of the tensor core of SM100: how many channels, and how they lie in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from .operand_tile import BLOCK_K, MMA_K_BYTES, ROW_BYTES
from .scale_factors import CHANNELS_PER_SCALE, SCALES_PER_WORD


@dataclass(frozen=True)
class KBlock:
    """K of a stage.

    channels   a multiple of 128; of BF16 64
    row_bytes  of an operand's row in shared memory, the span of its swizzle.  TMA moves as far along the row for the next stage: counted in
               bytes, or in values of unpacked FP4, which take a byte each
    weight_bits  of a weight in memory
    scale_channels   that share a scale; a word has four of a row's; 0 without scales
    """

    channels: int
    row_bytes: int
    weight_bits: int = 4
    scale_channels: int = CHANNELS_PER_SCALE

    @property
    def weight_row_bytes(self) -> int:
        return self.channels * self.weight_bits // 8

    @property
    def unpacks(self) -> bool:
        """Whether TMA makes a byte of each weight."""
        return self.weight_row_bytes < self.row_bytes

    @property
    def words(self) -> int:
        """Words of scales of a row."""
        return self.channels // (SCALES_PER_WORD * self.scale_channels) if self.scale_channels else 0

    @property
    def mmas(self) -> int:
        return self.row_bytes // MMA_K_BYTES


BYTE_VALUES = KBlock(BLOCK_K, BLOCK_K)
"""A byte per value: E4M3 tokens, and E2M1 weights that TMA unpacks."""
ALL_BYTES = KBlock(BLOCK_K, BLOCK_K, 8)
"""E4M3 weights, too."""
PLAIN_VALUES = KBlock(ROW_BYTES // 2, ROW_BYTES, 16, 0)
"""BF16, without scales."""


def packed_values(channels: int, scale_channels: int = CHANNELS_PER_SCALE) -> KBlock:
    """Two E2M1 values in a byte."""
    return KBlock(channels, channels // 2, scale_channels=scale_channels)

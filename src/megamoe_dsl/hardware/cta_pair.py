"""The CTA pairs of SM100, whose tensor cores multiply a tile together: the kinds of tcgen05.mma, and tensor memory, 512 columns of 128
lanes x 32 bits (PTX ISA, tcgen05, tcgen05.mma, Tensor Memory; SM100_FACTS, TMEM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .operand_tile import CHANNELS_PER_SCALE, SCALES_PER_WORD

CLUSTER = 2  # CTAs of a pair
BLOCK_N = 128  # weight rows of one CTA: swap-AB makes them half of the pair's M = 256
PAIR_ROWS = CLUSTER * BLOCK_N


@dataclass(frozen=True)
class PairMma:
    """A kind, with weights as operand A and tokens as B.

    name             of the kind in PTX
    weights, tokens  codes of the formats in the instruction descriptor
    channels         of K that one instruction takes: 32 bytes of a row
    """

    name: str
    weights: int
    tokens: int
    channels: int

    @property
    def formats(self) -> int:
        """Bits of the instruction descriptor that name formats: sums in bits 4-5, FP32, A in 7-9, B in 10-12."""
        return 1 << 4 | self.weights << 7 | self.tokens << 10


@dataclass(frozen=True)
class ScaledMma(PairMma):
    """A kind that scales its operands, by a factor for every 32 or 16 channels.

    scales           code of the format of scales
    scale_channels   that share one
    """

    scales: int = 1
    scale_channels: int = CHANNELS_PER_SCALE

    @property
    def formats(self) -> int:
        """Sums are FP32 and not said; scales in bit 23."""
        return self.scales << 23 | self.weights << 7 | self.tokens << 10

    @property
    def scale_ids(self) -> tuple[int, ...]:
        """For each MMA of a word of scales the first byte that it takes of it."""
        return tuple(range(0, SCALES_PER_WORD, self.channels // self.scale_channels))


PAIR_MMAS: dict[str | None, dict[tuple[str, str], PairMma]] = {
    None: {("bf16", "bf16"): PairMma("f16", 1, 1, 16)},
    "ue8m0": {
        ("e2m1", "e4m3"): ScaledMma("mxf8f6f4", 5, 0, 32),
        ("e4m3", "e4m3"): ScaledMma("mxf8f6f4", 0, 0, 32),
        ("e2m1", "e2m1"): ScaledMma("mxf4", 1, 1, 64),
    },
    "ue4m3": {("e2m1", "e2m1"): ScaledMma("mxf4nvf4", 1, 1, 64, scales=0, scale_channels=16)},
}
"""By format of the scales, then by elements of weights and tokens.  E2M1 weights beside E4M3 tokens are unpacked, a byte per value; of two
E2M1 a byte has two values."""


TMEM_COLUMNS = 512
TMEM_LANES = 128
SMALLEST_ALLOCATION = 32  # columns


class TmemField(NamedTuple):
    """Columns [first, first + columns) of tensor memory."""

    name: str
    first: int
    columns: int


class TmemPlan(Protocol):
    """What a kernel keeps in tensor memory."""

    @property
    def fields(self) -> list[TmemField]:
        """The fields, in the order of their first columns."""

    @property
    def used(self) -> int:
        """Columns that the fields take."""

    @property
    def allocated(self) -> int:
        """Columns: a power of two from 32 to 512 (PTX ISA, tcgen05.alloc)."""

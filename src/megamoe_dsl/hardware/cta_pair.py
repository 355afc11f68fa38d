"""The CTA pairs of SM100, whose tensor cores multiply a tile together: the kinds of tcgen05.mma, and tensor memory, 512 columns of 128
lanes x 32 bits (PTX ISA, tcgen05, tcgen05.mma, Tensor Memory; SM100_FACTS, TMEM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..layouts.arith import Int
from .operand_tile import CHANNELS_PER_SCALE, SCALES_PER_WORD

CLUSTER = 2  # CTAs of a pair
BLOCK_N = 128  # weight rows of one CTA: swap-AB makes them half of the pair's M = 256
PAIR_ROWS = CLUSTER * BLOCK_N


@dataclass(frozen=True)
class PairMma:
    """A kind of tcgen05.mma with weights as operand A and tokens as B.

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
    """A block-scaled kind: one scale factor per 32 or 16 channels.

    scales           code of the format of scales
    scale_channels   that share one
    """

    scales: int = 1
    scale_channels: int = CHANNELS_PER_SCALE

    @property
    def formats(self) -> int:
        """Accumulators are always FP32 and take no bits; the scale format is bit 23."""
        return self.scales << 23 | self.weights << 7 | self.tokens << 10

    @property
    def scale_ids(self) -> tuple[int, ...]:
        """For each MMA that shares a word of scales, the first byte it uses."""
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


ACCUMULATORS = 2  # the MMA warp fills one while the other is read


@dataclass(frozen=True)
class TmemPlan:
    """Columns: accumulators [0, accumulators * consumers * block_m), token scales (4 per 128 rows), weight scales (4 for each consumer);
    no scales where operands have none.

    consumers     sums of a tile that share its tokens: of 128 weight rows of the CTA each, one after another
    accumulators  tiles that have columns at a time
    scaled        whether operands have scales
    """

    block_m: int
    consumers: int = 1
    accumulators: int = ACCUMULATORS
    scaled: bool = True

    def accumulator(self, index: Int) -> Int:
        return index * (self.consumers * self.block_m)

    @property
    def sfa(self) -> int:
        return self.accumulators * self.consumers * self.block_m

    @property
    def sfa_columns(self) -> int:
        return 4 * -(-self.block_m // TMEM_LANES) if self.scaled else 0

    @property
    def sfb(self) -> int:
        return self.sfa + self.sfa_columns

    @property
    def used(self) -> int:
        return self.sfb + self.sfb_columns

    @property
    def sfb_columns(self) -> int:
        return 4 * self.consumers if self.scaled else 0

    @property
    def fits(self) -> bool:
        return self.used <= TMEM_COLUMNS

    @property
    def allocated(self) -> int:
        """A power of two from 32 to 512 (PTX ISA, tcgen05.alloc)."""
        if not self.fits:
            raise ValueError(f"block_m = {self.block_m}: needs {self.used} TMEM columns, at most {TMEM_COLUMNS} exist")
        return max(SMALLEST_ALLOCATION, 1 << (self.used - 1).bit_length())

    @property
    def fields(self) -> list[TmemField]:
        width = self.consumers * self.block_m
        accumulators = [TmemField(f"accumulator {i}", i * width, width) for i in range(self.accumulators)]
        scales = TmemField("token scales", self.sfa, self.sfa_columns), TmemField("weight scales", self.sfb, self.sfb_columns)
        return [*accumulators, *(scales if self.scaled else ())]

"""The kinds of tcgen05.mma that scale their operands by UE8M0 factors of 32 channels (PTX ISA, tcgen05.mma; SM100_FACTS)."""

from __future__ import annotations

from dataclasses import dataclass

from .scale_factors import CHANNELS_PER_SCALE, CHANNELS_PER_WORD


@dataclass(frozen=True)
class ScaledMma:
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
    def scale_ids(self) -> tuple[int, ...]:
        """For each MMA of 128 channels the first byte of the scale words that it takes."""
        return tuple(range(0, CHANNELS_PER_WORD // CHANNELS_PER_SCALE, self.channels // CHANNELS_PER_SCALE))


SCALED_MMAS = {
    ("e2m1", "e4m3"): ScaledMma("mxf8f6f4", 5, 0, 32),
    ("e4m3", "e4m3"): ScaledMma("mxf8f6f4", 0, 0, 32),
    ("e2m1", "e2m1"): ScaledMma("mxf4", 1, 1, 64),
}
"""By elements of weights and tokens.  E2M1 weights beside E4M3 tokens are unpacked, a byte per value; of two E2M1 a byte has two values."""

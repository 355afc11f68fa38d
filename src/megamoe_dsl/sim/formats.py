"""Narrow floating-point formats: decode tables and the bfloat16 conversions.

Every table maps a bit pattern to its exact value in float64. Sources: OCP Microscaling (MX) v1.0 for E4M3, E5M2, E2M3, E3M2, E2M1
and UE8M0; PTX ISA, "Alternate Floating-Point Data Formats", for UE4M3 (E4M3 without a sign).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]


def _table(exponent_bits: int, mantissa_bits: int, bias: int) -> Float64Array:
    """Values of a format in which no pattern is reserved for infinity or NaN."""
    bits = exponent_bits + mantissa_bits + 1
    code = np.arange(1 << bits)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    magnitude = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    return np.where(code >> (bits - 1), -magnitude, magnitude)


E4M3, E5M2 = _table(4, 3, 7), _table(5, 2, 15)
E4M3[[0x7F, 0xFF]] = np.nan  # the "fn" variant: no infinity, one NaN per sign
E5M2[[0x7C, 0xFC]] = np.inf, -np.inf
E5M2[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
E2M3, E3M2, E2M1 = _table(2, 3, 1), _table(3, 2, 3), _table(2, 1, 1)
UE8M0 = np.ldexp(1.0, np.arange(256) - 127)
UE8M0[0xFF] = np.nan
UE4M3 = np.abs(E4M3)  # bit 7 is ignored

# Arrays: numpy takes them a good deal faster than scalars.
_U16, _U1, _HALF = (np.array([value], np.uint32) for value in (16, 1, 0x7FFF))


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << _U16).view(np.float32)


def f16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return bits.view(np.float16).astype(np.float32)


def f32_to_f16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest values, ties to even."""
    return values.astype(np.float16).view(np.uint16)


def f32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even; every NaN becomes 0x7FFF, as ``cvt.rn.bf16.f32`` does."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounding = ((bits >> _U16) & _U1) + _HALF
    rounded = ((bits + rounding) >> _U16).astype(np.uint16)
    nan = values != values
    return np.where(nan, np.uint16(0x7FFF), rounded) if b"\x01" in nan.tobytes() else rounded

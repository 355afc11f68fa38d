"""Arithmetic of wgmma with FP8 operands, to the bit as an H200 does it.

One instruction aligns its 32 products and the accumulator to the largest exponent among them - of a product that is the sum of its
operands' exponents - and truncates each toward zero, 13 bits below that exponent. Their exact sum is truncated toward zero to 14
significant bits. Products of a zero do not count.

Measured with E4M3 operands (`reference.hopper_dot` is the same rule in torch and says how); assumed for E5M2. The rounding of an
accumulator that already held more than 14 bits follows from the rule and was not measured.

Most sums lose nothing to alignment. A matrix product in float64 gives those, and bounds over rows tell the others, which are aligned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megamoe_dsl.sim.formats import Float64Array

FRACTION_BITS = 13
"""Bits below the leading one that survive: 14 significant bits."""

_NO_PRODUCT = -64  # exponent of a zero or NaN: the sum of two fits int8, and any with one is below all others (-32 for E5M2)
_NO_VALUE = -10_000  # of an accumulator
_BIAS, _MANTISSA_BITS = 1023, 52
_KEEP_14_BITS = np.int64(-1 << _MANTISSA_BITS - FRACTION_BITS)
_SMALLEST = -400  # exponent below which nothing is told apart: far under that of any product


def _bit_tables() -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Exponents of the lowest and of the highest bit of an operand, by the upper 16 bits of its float64: the others are 0."""
    code = np.arange(1 << 16)
    exponent, fraction = code >> 4 & 0x7FF, code & 15
    trailing_zeros = np.log2(fraction & -fraction | 16 * (fraction == 0)).astype(np.int64)
    none = exponent == 0
    lowest = np.where(none, -_NO_VALUE, exponent - _BIAS - 4 + trailing_zeros)
    return lowest.astype(np.int16), np.where(none, _NO_VALUE, exponent - _BIAS).astype(np.int16)


_LOWEST, _HIGHEST = _bit_tables()


def _upper_bits(values: Float64Array) -> NDArray[np.uint16]:
    return values.view(np.uint16)[..., 3::4]


def operand_exponents(values: Float64Array) -> NDArray[np.int8]:
    """floor(log2(|value|)), `_NO_PRODUCT` for what has none."""
    exponents = np.frexp(values)[1] - 1
    return np.where((values == 0) | ~np.isfinite(values), _NO_PRODUCT, exponents).astype(np.int8)


def _exponents(values: Float64Array) -> NDArray[np.int32]:
    return np.where((values == 0) | ~np.isfinite(values), _NO_VALUE, np.frexp(values)[1] - 1).astype(np.int32)


def aligned_multiply_accumulate(a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """A (m, 32) times B (n, 32) transposed, plus the accumulator (m, n) when there is one, as one instruction sums them."""
    exact = a @ b.T
    if accumulator is not None:
        exact += accumulator
    result = (exact.view(np.int64) & _KEEP_14_BITS).view(np.float64).astype(np.float32)
    result += np.float32(0)  # no negative zero
    lossy = _may_lose_bits(a, b, accumulator)
    if lossy.any():
        rows, columns = np.flatnonzero(lossy.any(axis=1)), np.flatnonzero(lossy.any(axis=0))
        part = np.ix_(rows, columns)
        result[part] = _align_and_sum(a[rows], b[columns], None if accumulator is None else accumulator[part])
    return result


def _may_lose_bits(a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None) -> NDArray[np.bool_]:
    """For which sums (m, n) the lowest bit of a product or of the accumulator may lie below what alignment to the largest keeps."""
    code = _upper_bits(np.concatenate([a, b]))
    lowest, highest = _LOWEST.take(code).min(axis=1), _HIGHEST.take(code).max(axis=1)
    rows = len(a)
    top = highest[:rows, None] + highest[rows:]
    if accumulator is not None:
        total = accumulator.astype(np.float64)
        np.maximum(top, _HIGHEST.take(_upper_bits(total)), out=top)
    unit = np.maximum(top, _SMALLEST).astype(np.int64) - FRACTION_BITS
    lossy: NDArray[np.bool_] = lowest[:rows, None] + lowest[rows:] < unit
    if accumulator is not None:
        scaled = total * ((_BIAS - unit) << _MANTISSA_BITS).view(np.float64)
        lossy |= scaled != np.trunc(scaled)
    return lossy


def _align_and_sum(a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """The same for any operands. K first: sums and maxima over it run along contiguous rows.

    Products and their alignment are exact in FP32: at most 8 bits by a power of two, aligned addends below 2^15, 32 of them below 2^20.
    """
    left, right = (np.ascontiguousarray(one.T, dtype=np.float32) for one in (a, b))
    exponents = operand_exponents(left.astype(np.float64))[:, :, None] + operand_exponents(right.astype(np.float64))[:, None, :]
    largest = exponents.max(axis=0).astype(np.int32)
    largest[largest < _NO_PRODUCT + 16] = _NO_VALUE
    total = np.zeros(largest.shape) if accumulator is None else accumulator.astype(np.float64)
    top = np.maximum(np.maximum(largest, _exponents(total)), -1000)
    with np.errstate(over="ignore", invalid="ignore"):
        products = left[:, :, None] * right[:, None, :]
        # Where products are all zero the exponent may be any; clamped, the factor stays finite.
        products *= np.ldexp(np.float32(1), FRACTION_BITS - np.clip(top, -100, 127))
        np.trunc(products, out=products)
        units = products.sum(axis=0).astype(np.float64) + np.trunc(np.ldexp(total, FRACTION_BITS - top))
        excess = np.maximum(_exponents(units) - FRACTION_BITS, 0)
        result = np.ldexp(np.trunc(np.ldexp(units, -excess)), excess + top - FRACTION_BITS).astype(np.float32)
    return result + np.float32(0)  # no negative zero

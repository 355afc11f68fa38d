"""Arithmetic of wgmma with FP8 operands, to the bit as an H200 does it.

One instruction aligns its 32 products and the accumulator to the largest exponent among them - of a product that is the sum of its
operands' exponents - and truncates each toward zero, 13 bits below that exponent. Their exact sum is truncated toward zero to 14
significant bits. Products of a zero do not count.

Measured with E4M3 operands (`reference.hopper_dot` is the same rule in torch and says how); assumed for E5M2. The rounding of an
accumulator that already held more than 14 bits follows from the rule and was not measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megamoe_dsl.sim.formats import Float64Array

FRACTION_BITS = 13
"""Bits below the leading one that survive: 14 significant bits."""

_NO_PRODUCT = -64  # exponent of a zero or NaN: the sum of two fits int8, and any with one is below all others (-32 for E5M2)
_NO_VALUE = -10_000  # of an accumulator


def operand_exponents(values: Float64Array) -> NDArray[np.int8]:
    """floor(log2(|value|)), `_NO_PRODUCT` for what has none."""
    exponents = np.frexp(values)[1] - 1
    return np.where((values == 0) | ~np.isfinite(values), _NO_PRODUCT, exponents).astype(np.int8)


def _exponents(values: Float64Array) -> NDArray[np.int32]:
    return np.where((values == 0) | ~np.isfinite(values), _NO_VALUE, np.frexp(values)[1] - 1).astype(np.int32)


def aligned_multiply_accumulate(a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """A (m, 32) times B (n, 32) transposed, plus the accumulator (m, n) when there is one, as one instruction sums them.

    Products and their alignment are exact in FP32: at most 8 bits by a power of two, aligned addends below 2^15, 32 of them below 2^20.
    """
    left, right = (np.ascontiguousarray(one.T, dtype=np.float32) for one in (a, b))
    # K first: sums and maxima over it run along contiguous rows.
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

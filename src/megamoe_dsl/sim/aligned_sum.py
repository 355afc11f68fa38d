"""Arithmetic of wgmma with float operands and FP32 sums, to the bit as an H200 does it.

One instruction aligns its products, of 32 bytes of K, and the accumulator to the largest exponent among them - of a product that is the
sum of its operands' exponents, of a subnormal number that of the least normal one - and truncates each toward zero, so many bits below that
exponent: 13 of FP8, 25 of wider formats. Their exact sum is truncated toward zero to 14 or 24 significant bits, and to what FP32 has below
its normal numbers. Zeros do not count; no alignment is to less than 2^-133.

Measured with all five formats, 310,000 sums of each, half of them with an accumulator: none has other bits
(`tests/gpu/test_wgmma_on_gpu.py`). `reference.hopper_dot` is the same rule in torch.

Most sums of few bits lose nothing to alignment. A matrix product in float64 gives those, and bounds over rows tell the others, which are
aligned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import Float64Array


@dataclass(frozen=True)
class Alignment:
    """What an instruction keeps of its addends and of their sum.

    fraction_bits     of an addend, below the leading bit of the largest
    significant_bits  of the sum
    exact             type that holds every product, and the sum of an instruction's aligned products
    least             smallest normal number of A's format and of B's
    """

    fraction_bits: int
    significant_bits: int
    exact: type[np.float32] | type[np.float64]
    least: tuple[float, float]


_LEAST_NORMAL = {"e4m3": 2.0**-6, "e5m2": 2.0**-14, "f16": 2.0**-14, "bf16": 2.0**-126, "tf32": 2.0**-126}
_NOTHING = 2.0**-133  # what stands for the largest addend where all are zero or smaller
_LEAST_FP32, _FP32_UNIT, _LEAST_EXPONENT = 2.0**-126, 2.0**-149, -126
_BIAS, _MANTISSA_BITS = 1023, 52
_EXPONENT, _LEADING = np.int64(0x7FF << _MANTISSA_BITS), np.int64(1 << _MANTISSA_BITS)


@cache
def alignment_of(a: str, b: str) -> Alignment:
    """What an instruction keeps of operands in these formats, by their names in PTX."""
    least = _LEAST_NORMAL[a], _LEAST_NORMAL[b]
    return Alignment(13, 14, np.float32, least) if a in ("e4m3", "e5m2") else Alignment(25, 24, np.float64, least)


def _power(values: Float64Array, least: float) -> Float64Array:
    """2^floor(log2(|value|)), at least that of the least normal number; zero of zero and of what is not finite."""
    power = np.maximum((values.view(np.int64) & _EXPONENT).view(np.float64), least)
    return np.where((values == 0) | ~np.isfinite(power), 0.0, power)


def _highest(values: Float64Array) -> NDArray[np.int64]:
    """Exponent of the highest bit; far below all others where there is none."""
    return (values.view(np.int64) >> _MANTISSA_BITS & 0x7FF) - _BIAS


def _ends(rows: Float64Array, least: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each row an exponent no bit is below, far above all others where there is none, and that of the largest, as it is aligned to."""
    bits = rows.view(np.int64)
    smallest = (((bits >> _MANTISSA_BITS) - 1) & 0x7FF).min(axis=1) + 1 - _BIAS  # zeros, whose exponent is 0, come last
    fractions = np.bitwise_or.reduce(bits, axis=1) & _LEADING - 1 | _LEADING
    trailing = _highest((fractions & -fractions).astype(np.float64))
    return smallest - _MANTISSA_BITS + trailing, _highest(np.abs(rows).max(axis=1, initial=least))


def aligned_multiply_accumulate(
    a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None, alignment: Alignment
) -> NDArray[np.float32]:
    """A (m, k) times B (n, k) transposed, plus the accumulator (m, n) when there is one, as one instruction sums them."""
    exact = a @ b.T
    if accumulator is not None:
        exact += accumulator
    result = _cut(exact, alignment)
    lossy = _may_lose_bits(a, b, accumulator, alignment)
    if lossy.any():
        rows, columns = np.flatnonzero(lossy.any(axis=1)), np.flatnonzero(lossy.any(axis=0))
        part = np.ix_(rows, columns)
        result[part] = _align_and_sum(a[rows], b[columns], None if accumulator is None else accumulator[part], alignment)
    return result


def _cut(total: Float64Array, alignment: Alignment) -> NDArray[np.float32]:
    """Truncated to the significant bits, and below FP32's normal numbers to its least; never a negative zero."""
    total = (total.view(np.int64) & np.int64(-1 << _MANTISSA_BITS + 1 - alignment.significant_bits)).view(np.float64)
    if (small := np.abs(total) < _LEAST_FP32).any():
        total = np.where(small, np.trunc(total / _FP32_UNIT) * _FP32_UNIT, total)
    return total.astype(np.float32) + np.float32(0)


def _may_lose_bits(a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None, alignment: Alignment) -> NDArray[np.bool_]:
    """For which sums (m, n) the lowest bit of a product or of the accumulator may lie below what alignment to the largest keeps."""
    (low_a, high_a), (low_b, high_b) = _ends(a, alignment.least[0]), _ends(b, alignment.least[1])
    top = high_a[:, None] + high_b
    if accumulator is not None:
        total = accumulator.astype(np.float64)
        np.maximum(top, _highest(total), out=top)
    unit = np.maximum(top, _LEAST_EXPONENT) - alignment.fraction_bits
    lossy: NDArray[np.bool_] = low_a[:, None] + low_b < unit
    if accumulator is not None:
        scaled = total * ((_BIAS - unit) << _MANTISSA_BITS).view(np.float64)
        lossy |= scaled != np.trunc(scaled)
    return lossy


def _align_and_sum(a: Float64Array, b: Float64Array, accumulator: NDArray[np.float32] | None, alignment: Alignment) -> NDArray[np.float32]:
    """The same for any operands. K first: sums and maxima over it run along contiguous rows."""
    exact = alignment.exact
    left, right = (np.ascontiguousarray(one.T) for one in (a, b))
    a_power, b_power = (_power(one, least) for one, least in zip((left, right), alignment.least, strict=True))
    products: NDArray[Any] = np.multiply(a_power[:, :, None], b_power[:, None, :], dtype=exact)
    total = np.zeros(products.shape[1:]) if accumulator is None else accumulator.astype(np.float64)
    top = np.maximum(np.maximum(products.max(axis=0), _power(total, _LEAST_FP32)), _NOTHING)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = 2.0**alignment.fraction_bits / top  # finite, also as the type of products: where it is largest they are zero
        np.multiply(left.astype(exact)[:, :, None], right.astype(exact)[:, None, :], out=products)
        products *= np.minimum(scale, np.finfo(exact).max / 2).astype(exact)
        np.trunc(products, out=products)
        return _cut((products.sum(axis=0) + np.trunc(total * scale)) / scale, alignment)

"""Arithmetic of tcgen05.mma and wgmma: raw operand bytes to products, as pure functions over numpy arrays.

One instruction multiplies 32 bytes of K, or 48 of packed FP4. Its products and their sum are formed in float64, in which the sum of 32
E4M3 products is exact, then added to the FP32 accumulator and rounded once. Hardware aligns and truncates inside the tensor core in a way
that NVIDIA does not document; that was measured for wgmma with FP32 sums, and is not modeled elsewhere.

Such a wgmma aligns its products and the accumulator to the largest exponent among them (of a product the sum of its operands' exponents, of
a subnormal number that of the least normal one) and truncates each toward zero: 13 bits below that exponent for FP8, 25 for wider formats.
Their exact sum is truncated toward zero to 14 or 24 significant bits, and to what FP32 has below its normal numbers. Zeros do not count; no
alignment is to less than 2^-133. 310,000 sums of each of five formats, half of them with an accumulator, have these bits on silicon
(`tests/gpu/test_wgmma_on_gpu.py`); `reference.hopper_dot` is the same rule in torch.

Most sums of few bits lose nothing to alignment: a matrix product in float64 gives those, and bounds over rows tell which others to align.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sim import formats
from .descriptors import K_BYTES
from .formats import Float64Array
from .memory import Bytes

SCALE_TABLES = {"ue8m0": formats.UE8M0, "ue4m3": formats.UE4M3}
# Two E2M1 values for every byte: element 0 is the low nibble.
_E2M1_PAIRS = np.stack([formats.E2M1[np.arange(256) & 15], formats.E2M1[np.arange(256) >> 4]], axis=1)
_E2M1_AS_ONE = _E2M1_PAIRS.view(np.complex128)[:, 0]  # a pair is looked up as one element


WHOLE_FORMATS = ("e4m3", "e5m2", "f16", "bf16", "tf32", "s8", "u8")  # whose values take whole bytes


def element_bytes(name: str) -> int:
    return {"f16": 2, "bf16": 2, "tf32": 4}.get(name, 1)


_DECODERS: dict[str, Callable[[Bytes], Float64Array]] = {
    "e4m3": formats.E4M3.take, "e5m2": formats.E5M2.take, "e2m1x2": lambda raw: _E2M1_AS_ONE.take(raw).view(np.float64),
    "e2m1": lambda raw: _E2M1_AS_ONE.take(raw.reshape(len(raw), -1, 16)[:, :, :8]).reshape(len(raw), -1).view(np.float64),
    "e2m3": lambda raw: formats.E2M3[unpack_6bit(raw.reshape(len(raw), -1, 16)[:, :, :12])].reshape(len(raw), -1),
    "e3m2": lambda raw: formats.E3M2[unpack_6bit(raw.reshape(len(raw), -1, 16)[:, :, :12])].reshape(len(raw), -1),
    "s8": lambda raw: raw.view(np.int8).astype(np.float64), "u8": lambda raw: raw.astype(np.float64),
    "f16": lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float64),
    "bf16": lambda raw: formats.bf16_to_f32(np.ascontiguousarray(raw).view(np.uint16)).astype(np.float64),
    "tf32": lambda raw: (np.ascontiguousarray(raw).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64),  # ignores 13 bits
}  # fmt: skip


def decode_operand(raw: Bytes, name: str) -> Float64Array:
    """Values (rows, k), float64, of (rows, 32 or 48) bytes in K order as they lie in shared memory: `e2m1`, `e2m3` and `e3m2` in the groups
    of 16 bytes, 8 or 12 of them data, that TMA writes (b4x16_p64, b6x16_p32); `e2m1x2` is packed."""
    return _DECODERS[name](raw)


def unpack_6bit(packed: Bytes) -> NDArray[np.int64]:
    """(..., 12) bytes to (..., 16) codes of 6 bits, least significant first."""
    triples = packed.reshape(*packed.shape[:-1], 4, 3).astype(np.int64)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = np.stack([(word >> shift) & 63 for shift in (0, 6, 12, 18)], axis=-1)
    return codes.reshape(*packed.shape[:-1], 16)


def scale_rows(operand: Float64Array, scales: Float64Array) -> Float64Array:
    """Multiply each K block of an operand by its scale. Shapes (rows, k) and (rows, blocks)."""
    rows, k = operand.shape
    blocks = scales.shape[1]
    if blocks == 1:
        return operand * scales
    return (operand.reshape(rows, blocks, k // blocks) * scales[:, :, None]).reshape(rows, k)


def multiply_accumulate(
    a: Float64Array, b: Float64Array, accumulator: NDArray[Any] | None, dtype: type = np.float32, saturate: bool = False
) -> NDArray[Any]:
    """A (m, k) times B (n, k) transposed, plus the accumulator (m, n) when there is one, rounded once to `dtype`. An int32 result wraps, or
    with `saturate` stays at the largest or smallest value; the sum is exact."""
    product = a @ b.T
    if accumulator is not None:
        product += accumulator
    if dtype is np.int32:
        if saturate:
            product = np.clip(product, -(2.0**31), 2.0**31 - 1)
        return product.astype(np.int64).astype(np.int32)
    return product.astype(dtype)


@lru_cache(maxsize=256)
def scale_blocks(kind: str, qualifiers: tuple[str, ...], k_bytes: int = K_BYTES) -> int:
    """Number of scale factors per row of one MMA, from ``.scale_vec::NX`` or ``.blockN``; the default is one per 32 elements."""
    elements = k_bytes if kind == "mxf8f6f4" else 2 * k_bytes
    for qualifier in qualifiers:
        if qualifier.startswith("scale_vec::"):
            return int(qualifier.removeprefix("scale_vec::").removesuffix("X"))
        if qualifier in ("block16", "block32"):
            return elements // int(qualifier.removeprefix("block"))
    return elements // (16 if kind == "mxf4nvf4" else 32)


GROUP = 16  # Bytes of a group in shared memory, and values in it.
_HELD = {"e2m1": (2, formats.E2M1), "e2m3": (1, formats.E2M3), "e3m2": (1, formats.E3M2)}
"""Formats with bytes that hold one value each: where it begins, and values by code."""


def expand(raw: Bytes, source: str) -> Bytes:
    """Bytes (rows, n) as shared memory has them to as many holders; `source` is b4x16_p64 or b6x16_p32."""
    groups = raw.reshape(len(raw), -1, GROUP)
    if source == "b4x16_p64":
        packed = groups[:, :, : GROUP // 2]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.uint8) << 2
    else:
        codes = unpack_6bit(groups[:, :, : 3 * GROUP // 4]).astype(np.uint8) << 1
    return np.asarray(codes.reshape(len(raw), -1), np.uint8)


def decode_tensor_operand(raw: Bytes, name: str) -> Float64Array:
    """As `decode_operand`, of an operand in tensor memory, where values of less than a byte have a byte each."""
    if name not in _HELD:
        return decode_operand(raw, name)
    shift, table = _HELD[name]
    return table[raw >> shift & (len(table) - 1)]


Matrix = NDArray[Any]
RESULT_TYPES: dict[str, type] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def to_matrix(registers: list[Any], dtype: type = np.float32) -> Matrix:
    """The D fragment, (16, n): register 4j + 2h + q of thread t is row t / 4 + 8h, column 8j + 2 (t % 4) + q. Of 16-bit elements, register
    2j + h holds the columns of both q."""
    words: Matrix = np.stack([np.ascontiguousarray(r).view(np.uint32) for r in registers]).view(dtype)
    if np.dtype(dtype).itemsize == 2:
        return words.reshape(-1, 2, 8, 4, 2).transpose(1, 2, 0, 3, 4).reshape(16, -1)
    return words.reshape(-1, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, -1)


def to_registers(matrix: Matrix) -> Matrix:
    """Inverse of :func:`to_matrix`: (registers, 32 threads)."""
    pieces = matrix.reshape(2, 8, -1, 4, 2)  # h, t / 4, j, t % 4, q
    if matrix.itemsize == 2:
        return np.ascontiguousarray(pieces.transpose(2, 0, 1, 3, 4)).view(np.uint32).reshape(-1, 32)
    return np.ascontiguousarray(pieces.transpose(2, 0, 4, 1, 3)).reshape(-1, 32)


def row_fragment(registers: list[Any], groups: int) -> Bytes:
    """Operand rows (8 * groups, bytes of K): register h + groups * g of thread t holds bytes 16g + 4 (t % 4) of row t / 4 + 8h."""
    words = np.stack(registers).reshape(-1, groups, 8, 4)  # g, h, t / 4, t % 4
    return np.ascontiguousarray(words.transpose(1, 2, 0, 3)).view(np.uint8).reshape(8 * groups, -1)


@dataclass(frozen=True)
class Alignment:
    """What an instruction keeps of its addends and of their sum."""

    fraction_bits: int  # of an addend, below the leading bit of the largest
    significant_bits: int  # of the sum
    exact: type[np.float32] | type[np.float64]  # type that holds every product, and the sum of an instruction's aligned products
    least: tuple[float, float]  # smallest normal number of A's format and of B's


_LEAST_NORMAL = {"e4m3": 2.0**-6, "e5m2": 2.0**-14, "f16": 2.0**-14, "bf16": 2.0**-126, "tf32": 2.0**-126}
_NOTHING = 2.0**-133  # what stands for the largest addend where all are zero or smaller
_LEAST_FP32, _FP32_UNIT, _LEAST_EXPONENT = 2.0**-126, 2.0**-149, -126
_EXPONENT_BIAS, _MANTISSA_BITS = 1023, 52
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
    return (values.view(np.int64) >> _MANTISSA_BITS & 0x7FF) - _EXPONENT_BIAS


def _ends(rows: Float64Array, least: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per row: an exponent below which no value has a bit (very large if all are zero), and the one that the largest is aligned by."""
    bits = rows.view(np.int64)
    smallest = (((bits >> _MANTISSA_BITS) - 1) & 0x7FF).min(axis=1) + 1 - _EXPONENT_BIAS  # zeros, whose exponent is 0, come last
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
        scaled = total * ((_EXPONENT_BIAS - unit) << _MANTISSA_BITS).view(np.float64)
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

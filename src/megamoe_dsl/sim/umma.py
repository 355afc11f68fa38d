"""Arithmetic of tcgen05.mma and wgmma: raw operand bytes to products, as pure functions over numpy arrays.

One instruction multiplies 32 bytes of K, or 48 of packed FP4. Its products and their sum are formed in float64, in which the sum of 32
E4M3 x E2M1 (or E4M3 x E4M3) products is exact, then added to the FP32 accumulator and rounded once. Hardware aligns and truncates inside
the tensor core in a way that NVIDIA does not document; for wgmma with FP32 sums that was measured, see `aligned_sum`, elsewhere it is
not modeled.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import formats
from .formats import Float64Array
from .instruction_descriptor import K_BYTES
from .memory import Bytes

_BYTE_TABLES = {"e4m3": formats.E4M3, "e5m2": formats.E5M2}
_SCALE_TABLES = {"ue8m0": formats.UE8M0, "ue4m3": formats.UE4M3}
# Two E2M1 values for every byte: element 0 is the low nibble.
_E2M1_PAIRS = np.stack([formats.E2M1[np.arange(256) & 15], formats.E2M1[np.arange(256) >> 4]], axis=1)
_E2M1_AS_ONE = _E2M1_PAIRS.view(np.complex128)[:, 0]  # a pair is looked up as one element


def element_bytes(name: str) -> int:
    """Bytes an element occupies for the purpose of MN-major addressing."""
    return {"f16": 2, "bf16": 2, "tf32": 4}.get(name, 1)


def decode_operand(raw: Bytes, name: str) -> Float64Array:
    """Values (rows, k), float64, of operand rows: (rows, 32 or 48) bytes in K order as they lie in shared memory, padding included.

    `e2m1`, `e2m3` and `e3m2` are the padded 16-byte groups that TMA writes (b4x16_p64: 8 data bytes, b6x16_p32: 12 data bytes); `e2m1x2` is
    packed.
    """
    rows = len(raw)
    if name in _BYTE_TABLES:
        return _BYTE_TABLES[name].take(raw)
    if name == "e2m1":
        return _E2M1_AS_ONE.take(raw.reshape(rows, -1, 16)[:, :, :8]).reshape(rows, -1).view(np.float64)
    if name == "e2m1x2":
        return _E2M1_AS_ONE.take(raw).view(np.float64)
    if name in ("e2m3", "e3m2"):
        codes = unpack_6bit(raw.reshape(rows, -1, 16)[:, :, :12])
        return (formats.E2M3 if name == "e2m3" else formats.E3M2)[codes].reshape(rows, -1)
    if name in ("s8", "u8"):
        return raw.view(np.int8 if name == "s8" else np.uint8).astype(np.float64)
    if name == "f16":
        return np.ascontiguousarray(raw).view(np.float16).astype(np.float64)
    if name == "bf16":
        return formats.bf16_to_f32(np.ascontiguousarray(raw).view(np.uint16)).astype(np.float64)
    if name == "tf32":  # the low 13 mantissa bits are ignored
        return (np.ascontiguousarray(raw).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    raise ValueError(f"operand format {name!r} is not modeled")


def unpack_6bit(packed: Bytes) -> NDArray[np.int64]:
    """(..., 12) bytes to (..., 16) codes of 6 bits, least significant first."""
    triples = packed.reshape(*packed.shape[:-1], 4, 3).astype(np.int64)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = np.stack([(word >> shift) & 63 for shift in (0, 6, 12, 18)], axis=-1)
    return codes.reshape(*packed.shape[:-1], 16)


def decode_scales(raw: Bytes, name: str) -> Float64Array:
    """Values of scale-factor bytes in format ``ue8m0`` or ``ue4m3``."""
    return _SCALE_TABLES[name].take(raw)


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
    """A (m, k) times B (n, k) transposed, plus the accumulator (m, n) when there is one, rounded once to `dtype`.

    An int32 result wraps, or with `saturate` stays at the largest or smallest value; the sum is exact.
    """
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


GROUP = 16
"""Bytes of a group in shared memory, and values in it."""
_SHIFTS = {"e2m1": 2, "e2m3": 1, "e3m2": 1}
_HELD_TABLES = {"e2m1": formats.E2M1, "e2m3": formats.E2M3, "e3m2": formats.E3M2}


def expand(raw: Bytes, source: str) -> Bytes:
    """Bytes (rows, n) as shared memory has them to as many holders; `source` is b4x16_p64 or b6x16_p32."""
    groups = raw.reshape(len(raw), -1, GROUP)
    if source == "b4x16_p64":
        packed = groups[:, :, : GROUP // 2]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.uint8) << 2
    else:
        codes = unpack_6bit(groups[:, :, : 3 * GROUP // 4]).astype(np.uint8) << 1
    return np.asarray(codes.reshape(len(raw), -1), np.uint8)


def is_held(name: str) -> bool:
    """Whether operands of this element format are held in the middle of bytes."""
    return name in _SHIFTS


def decode_holders(raw: Bytes, name: str) -> Float64Array:
    """Values of holders, of an element format that is held."""
    table = _HELD_TABLES[name]
    return table[raw >> _SHIFTS[name] & (len(table) - 1)]

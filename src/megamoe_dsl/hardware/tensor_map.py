"""The 128-byte TMA descriptor ("tensor map") as plain integers: where a tensor lies in global memory, which box of it one instruction
moves, and how the box is arranged in shared memory.  :meth:`TensorMap.encode` builds the words that ``cuTensorMapEncodeTiled`` builds,
without a driver.

Source: CUDA driver API, "Tensor Map Object Management" (limits); the bit layout, which NVIDIA does not document, was measured from the
inline encoder of CuTe DSL 4.8.1 (``tests/layouts/test_tensor_map.py``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

DESCRIPTOR_BYTES = 128  # size and required alignment of a descriptor is 128 and 64 bytes
FIELD_BYTES = 64  # the bytes at its start that carry fields; kernels copy no others

SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
_TF32_BIT = 1 << 16
# Two constants of the DSL's encoder that a driver leaves at 0; neither changes what a copy does.
_LOW_NIBBLE = 2
_MULTIDIMENSIONAL_BIT = 1 << 21


class TensorMapDtype(Enum):
    """Element type: (hardware code, driver enum, bits per element in global memory)."""

    U8 = (0, 0, 8)
    U16 = (1, 1, 16)
    U32 = (2, 2, 32)
    U64 = (4, 4, 64)
    F16 = (6, 6, 16)
    F32 = (7, 7, 32)
    F64 = (9, 8, 64)
    BF16 = (10, 9, 16)
    TF32 = (7 | _TF32_BIT, 11, 32)
    FP4_PACKED = (11, 13, 4)  # 16U4_ALIGN8B: two values a byte in global memory and in shared memory
    FP4_UNPACKED = (12, 14, 4)
    """16U4_ALIGN16B: in shared memory every 16 values are 8 packed bytes followed by 8 bytes of padding (for kind::mxf8f6f4)."""

    @property
    def hardware_code(self) -> int:
        return self.value[0]

    @property
    def driver_code(self) -> int:
        return self.value[1]

    @property
    def bits(self) -> int:
        return self.value[2]

    @property
    def smem_bits(self) -> int:
        return 8 if self is TensorMapDtype.FP4_UNPACKED else self.bits


def _require(condition: bool, field: str, value: object, allowed: str) -> None:
    if not condition:
        raise ValueError(f"TensorMap.{field} = {value!r}: must be {allowed}")


@dataclass(frozen=True)
class MapFields:
    """Fields of a `TensorMap`, of which addresses, dimensions and strides may be traced integers."""

    address: Any
    dtype: TensorMapDtype
    dims: tuple[Any, ...]
    strides: tuple[Any, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 128

    @property
    def tensor_map(self) -> TensorMap:
        """The map of fields that are integers.  Raises ValueError for an address or a stride that TMA does not take."""
        return TensorMap(**vars(self))


@dataclass(frozen=True)
class TensorMap(MapFields):
    """A tiled tensor map.  Raises ValueError, which names the field, where one breaks a limit of the hardware.

    address       global address in bytes, 16-byte aligned (32 for `FP4_UNPACKED`)
    dims          extent of every dimension in elements, innermost first, 1 to 5 of them
    strides       byte strides of `dims[1:]`; the innermost dimension is contiguous
    box           extent of the copied box in elements, innermost first, at most 256 each
    swizzle       span in shared memory in bytes: 0, 32, 64 or 128
    l2_promotion  fetch granularity of L2 in bytes: 0, 64, 128 or 256; a hint
    """

    def __post_init__(self) -> None:
        for name in ("dims", "strides", "box"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        unpacked = self.dtype is TensorMapDtype.FP4_UNPACKED
        align = 32 if unpacked else 16
        _require(0 <= self.address < 1 << 64 and self.address % align == 0, "address", self.address, f"a multiple of {align} below 2**64")
        _require(1 <= self.rank <= 5, "dims", self.dims, "1 to 5 extents")
        _require(all(1 <= d <= 1 << 32 for d in self.dims), "dims", self.dims, "between 1 and 2**32 each")
        _require(len(self.strides) == self.rank - 1, "strides", self.strides, f"{self.rank - 1} byte strides for {self.rank} dims")
        strides_fit = all(0 <= s < 1 << 40 and s % align == 0 for s in self.strides)
        _require(strides_fit, "strides", self.strides, f"multiples of {align} below 2**40")
        _require(len(self.box) == self.rank, "box", self.box, f"{self.rank} extents")
        _require(all(1 <= b <= 256 for b in self.box), "box", self.box, "between 1 and 256 each")
        _require(self.swizzle in SWIZZLES, "swizzle", self.swizzle, f"one of {SWIZZLES}")
        _require(self.l2_promotion in L2_PROMOTIONS, "l2_promotion", self.l2_promotion, f"one of {L2_PROMOTIONS}")
        if unpacked:
            _require(self.dims[0] % 128 == 0, "dims", self.dims, "a multiple of 128 in the innermost dimension of unpacked FP4")
            _require(self.box[0] == 128, "box", self.box, "128 elements in the innermost dimension of unpacked FP4")
            _require(self.swizzle in (0, 128), "swizzle", self.swizzle, "0 or 128 for unpacked FP4")
        if self.dtype is TensorMapDtype.FP4_PACKED:
            _require(self.dims[0] % 2 == 0, "dims", self.dims, "even in the innermost dimension of packed FP4")
        inner_bits = self.box[0] * self.dtype.smem_bits
        _require(inner_bits % 128 == 0, "box", self.box, f"a multiple of 16 bytes in the innermost dimension, got {inner_bits / 8:g}")
        if self.swizzle:
            limit = f"at most the swizzle span of {self.swizzle} bytes in the innermost dimension, got {inner_bits // 8}"
            _require(inner_bits // 8 <= self.swizzle, "box", self.box, limit)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.address, self.dtype, self.dims, self.strides, self.box, self.swizzle, self.l2_promotion))

    @cached_property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def box_bytes(self) -> int:
        """Shared-memory footprint of one box in bytes, padding of unpacked FP4 included."""
        return prod(self.box) * self.dtype.smem_bits // 8

    @cached_property
    def transaction_bytes(self) -> int:
        """Bytes that one load counts on its mbarrier: out-of-bounds elements count, padding of unpacked FP4 does not."""
        return prod(self.box) * self.dtype.bits // 8

    def encode(self) -> bytes:
        """The hardware descriptor: 128 bytes, of which the first 64 carry fields."""
        words = [0] * 32
        words[0], words[1] = self.address & 0xFFFFFFFF, self.address >> 32
        code = self.dtype.hardware_code
        words[2] = (
            _LOW_NIBBLE
            | (self.rank - 1) << 4
            | (code & 15) << 7
            | SWIZZLES.index(self.swizzle) << 13
            | (code & _TF32_BIT)
            | L2_PROMOTIONS.index(self.l2_promotion) << 17
            | (_MULTIDIMENSIONAL_BIT if self.rank > 1 else 0)
        )
        for i, stride in enumerate(self.strides):
            words[3 + i] = (stride >> 4) & 0xFFFFFFFF
            words[7] |= (stride >> 36) << (4 * i)
        for i, dim in enumerate(self.dims):
            words[8 + i] = dim - 1
        words[13] = (self.box[0] - 1) << 24
        for i, extent in enumerate(self.box[1:]):
            words[14] |= (extent - 1) << (8 * i)
        return struct.pack("<32I", *words)

    @classmethod
    def decode(cls, descriptor: bytes) -> TensorMap:
        """Reads a descriptor made by :meth:`encode`, by the DSL or by the driver.  Raises ValueError for too few bytes, an unknown type
        code, or fields outside the limits (an uninitialized descriptor).
        """
        if len(descriptor) < FIELD_BYTES:
            raise ValueError(f"tensor map: got {len(descriptor)} bytes, need {DESCRIPTOR_BYTES}")
        words = struct.unpack("<16I", descriptor[:FIELD_BYTES])
        code = (words[2] >> 7) & 15 | words[2] & _TF32_BIT
        dtype = next((d for d in TensorMapDtype if d.hardware_code == code), None)
        if dtype is None:
            raise ValueError(f"tensor map: unknown element type code {code:#x} (is the descriptor initialized?)")
        rank = ((words[2] >> 4) & 7) + 1
        extents = (words[13] >> 24, *struct.pack("<I", words[14]))
        return cls(
            address=words[0] | words[1] << 32,
            dtype=dtype,
            dims=tuple(words[8 + i] + 1 for i in range(min(rank, 5))),
            strides=tuple((words[3 + i] | ((words[7] >> (4 * i)) & 15) << 32) << 4 for i in range(min(rank, 5) - 1)),
            box=tuple(e + 1 for e in extents[:rank]),
            swizzle=SWIZZLES[(words[2] >> 13) & 3],
            l2_promotion=L2_PROMOTIONS[(words[2] >> 17) & 3],
        )

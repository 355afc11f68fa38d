"""Descriptors of tcgen05 and wgmma: matrices in shared memory with the bytes they name, and the 32 bits of an instruction.

Sources: PTX ISA, "Shared memory descriptor" (tcgen05) and "Matrix Descriptor Format" (wgmma), "Canonical Layouts" and "Instruction
descriptor"; the K-major address rule start + (r/8)*SBO + (r%8)*span + k, then swizzle, and the block-scaled fields were confirmed on
compiled kernels (0x10840280 is M 256, N 16, A E2M1, B E4M3, UE8M0 scales).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..hardware.operand_tile import Swizzle
from .chunks import CHUNK, IndexArray
from .errors import SimError

_SM100_SPANS = {0: 0, 2: 128, 4: 64, 6: 32}
_SM90_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True)
class SmemDescriptor:
    """A decoded descriptor, in bytes."""

    start: int  # offset of the first byte in the shared memory of the CTA
    leading: int  # leading-dimension byte offset (LBO); with `absolute` where the rows go on after their span (K of 48 bytes)
    stride: int  # stride-dimension byte offset (SBO)
    span: int  # swizzle span, 0, 32, 64 or 128
    absolute: bool = False

    @classmethod
    @lru_cache(maxsize=4096)
    def decode_sm100(cls, word: int) -> SmemDescriptor:
        """tcgen05 form: version 1, layout type in bits 61-63."""
        version = (word >> 46) & 3
        if version != 1:
            raise SimError(f"SMEM descriptor {word:#018x}: version field is {version}, sm_100 needs 1")
        layout = word >> 61
        if layout not in _SM100_SPANS:
            raise SimError(f"SMEM descriptor {word:#018x}: layout type {layout} is not modeled (0, 2, 4, 6 are)")
        absolute, span = bool((word >> 52) & 1), _SM100_SPANS[layout]
        if absolute and span != 128:
            raise SimError(f"SMEM descriptor {word:#018x}: an absolute leading dimension needs the 128-byte swizzle")
        return replace(cls._decode(word, span), absolute=absolute)

    @classmethod
    @lru_cache(maxsize=4096)
    def decode_sm90(cls, word: int) -> SmemDescriptor:
        """wgmma form: layout type in bits 62-63."""
        return cls._decode(word, _SM90_SPANS[word >> 62])

    @classmethod
    def _decode(cls, word: int, span: int) -> SmemDescriptor:
        base_offset = (word >> 49) & 7
        if base_offset:
            raise SimError(f"SMEM descriptor {word:#018x}: base offset {base_offset} is not modeled, align the tile to its swizzle")
        return cls((word & 0x3FFF) << 4, ((word >> 16) & 0x3FFF) << 4, ((word >> 32) & 0x3FFF) << 4, span)


@lru_cache(maxsize=64)  # large; those who ask keep what they make of it
def operand_bytes(descriptor: SmemDescriptor, rows: int, k_bytes: int, element_bytes: int, mn_major: bool) -> IndexArray:
    """Offsets of an operand slice, shaped (rows, k_bytes): byte k of row r, whatever the layout in memory. `rows` is the extent along M or
    N; `element_bytes` matters to MN-major layouts, in which M (or N) is the contiguous dimension."""
    row = np.arange(rows)[:, None]
    k_byte = np.arange(k_bytes)[None, :]
    span = descriptor.span
    if not mn_major:
        if descriptor.absolute:
            room = span - descriptor.start % span
            begin = np.where(k_byte < room, descriptor.start, descriptor.leading - room)
            return Swizzle(span)(begin + (row // 8) * descriptor.stride + (row % 8) * span + k_byte)
        if span:
            linear = (row // 8) * descriptor.stride + (row % 8) * span + k_byte
        else:
            linear = (row // 8) * descriptor.stride + (row % 8) * CHUNK + (k_byte // CHUNK) * descriptor.leading + k_byte % CHUNK
    else:
        k, byte_of_element = k_byte // element_bytes, k_byte % element_bytes
        mn_byte = row * element_bytes + byte_of_element
        width = span or CHUNK
        block, k_group = (descriptor.leading, descriptor.stride) if span else (descriptor.stride, descriptor.leading)
        linear = (mn_byte // width) * block + mn_byte % width + (k % 8) * width + (k // 8) * k_group
    return Swizzle(span)(descriptor.start + linear)


K_BYTES = 32  # Bytes of K per instruction, the same for every kind.
LONG_K_BYTES = 48
BLOCK_SCALED_KINDS = ("mxf8f6f4", "mxf4", "mxf4nvf4")

_NARROW_FORMATS = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "f8f6f4": _NARROW_FORMATS, "i8": {0: "u8", 1: "s8"}, "mxf8f6f4": _NARROW_FORMATS,
    "mxf4": {1: "e2m1x2"}, "mxf4nvf4": {1: "e2m1x2"},
}  # fmt: skip


_ACCUMULATORS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}


@dataclass(frozen=True)
class InstructionDescriptor:
    """The fields of an instruction descriptor of tcgen05.mma."""

    m: int  # and n: shape of the MMA over the whole CTA group
    n: int
    a_format: str  # and b_format: element formats; `e2m1x2` is FP4 packed two a byte (kind mxf4), `e2m1` the padded form
    b_format: str
    a_negate: bool  # and b_negate: multiply the operand by -1
    b_negate: bool
    a_mn_major: bool  # and b_mn_major: operand is M- or N-major in shared memory
    b_mn_major: bool
    accumulator: str  # `f32`, `f16` or `s32`
    saturate: bool  # an `s32` accumulator stays at its limits
    scale_format: str  # `ue8m0` or `ue4m3` for block-scaled kinds, else empty
    a_scale_id: int  # and b_scale_id: first byte of the scale-factor column that this K step uses
    b_scale_id: int
    k_bytes: int  # K of one operand row; 48 (K = 96) for packed FP4 only, where bit 31 is set

    @classmethod
    @lru_cache(maxsize=1024)
    def decode(cls, word: int, kind: str) -> InstructionDescriptor:
        """Decode for a kind, as in `mxf4`. Raises SimError for what the kind does not have, and for sparsity."""

        def bits(low: int, count: int = 1) -> int:
            return word >> low & (1 << count) - 1

        formats = _FORMATS.get(kind)
        if formats is None:
            raise SimError(f"tcgen05.mma kind::{kind} is not modeled ({', '.join(_FORMATS)} are)")
        scaled, fault = kind in BLOCK_SCALED_KINDS, f"instruction descriptor {word:#010x}:"
        if bits(2):
            raise SimError(f"{fault} sparsity is not modeled")
        accumulators, code = _ACCUMULATORS.get(kind, {1: "f32"}), 1 if scaled else bits(4, 2)
        if code not in accumulators:
            allowed = ", ".join(f"{number} {name}" for number, name in accumulators.items())
            raise SimError(f"{fault} accumulator type {code}; kind::{kind} has {allowed}")
        long = bool(scaled and bits(31))
        if long and kind == "mxf8f6f4":
            raise SimError(f"{fault} K = 96; kind::{kind} has K = 32")
        a_code, b_code = bits(7, 3), bits(10, 2 if kind.startswith("mxf4") else 3)
        if a_code not in formats or b_code not in formats:
            allowed = ", ".join(f"{code} {name}" for code, name in formats.items())
            raise SimError(f"{fault} formats A {a_code}, B {b_code}; kind::{kind} has {allowed}")
        return cls(
            m=bits(24, 5) << 4,
            n=bits(17, 6) << 3,
            a_format=formats[a_code],
            b_format=formats[b_code],
            a_negate=bool(bits(13)),
            b_negate=bool(bits(14)),
            a_mn_major=bool(bits(15)),
            b_mn_major=bool(bits(16)),
            accumulator=accumulators[code],
            saturate=kind == "i8" and bool(bits(3)),
            scale_format=("ue8m0" if bits(23) else "ue4m3") if scaled else "",
            a_scale_id=bits(29, 2) if scaled else 0,
            b_scale_id=bits(4, 2) if scaled else 0,
            k_bytes=LONG_K_BYTES if long else K_BYTES,
        )

    def check_shape(self, ctas: int) -> None:
        """Raise unless (m, n) is a dense shape of ``cta_group::ctas`` (PTX ISA, "Matrix shape"; N as CuTe DSL 4.8.1 allows it)."""
        allowed_m, step = ((128, 256), 16) if ctas == 2 else ((64, 128), 8)
        if self.m not in allowed_m or not step <= self.n <= 256 or self.n % step:
            raise SimError(
                f"tcgen05.mma M {self.m} N {self.n} with cta_group::{ctas}: M must be in {allowed_m}, N a multiple of {step} up to 256"
            )

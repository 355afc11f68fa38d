"""The 32-bit instruction descriptor of ``tcgen05.mma``.

Source: PTX ISA, "Instruction descriptor"; the block-scaled fields were confirmed on compiled kernels (0x10840280 is M 256, N 16,
A E2M1, B E4M3, UE8M0 scales).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .errors import SimError

K_BYTES = 32
"""Bytes of K per instruction, the same for every kind."""
LONG_K_BYTES = 48
BLOCK_SCALED_KINDS = ("mxf8f6f4", "mxf4", "mxf4nvf4")

_NARROW_FORMATS = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _NARROW_FORMATS,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _NARROW_FORMATS,
    "mxf4": {1: "e2m1x2"},
    "mxf4nvf4": {1: "e2m1x2"},
}


_ACCUMULATORS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}


@dataclass(frozen=True)
class InstructionDescriptor:
    """Decoded fields.

    m, n                    shape of the MMA over the whole CTA group
    a_format, b_format      element formats; `e2m1x2` is FP4 packed two a byte (kind mxf4), `e2m1` the padded form
    a_negate, b_negate      multiply the operand by -1
    a_mn_major, b_mn_major  operand is M- or N-major in shared memory
    accumulator             `f32`, `f16` or `s32`
    saturate                an `s32` accumulator stays at its limits
    scale_format            `ue8m0` or `ue4m3` for block-scaled kinds, else empty
    a_scale_id, b_scale_id  first byte of the scale-factor column that this K step uses
    k_bytes                 K of one operand row; 48 (K = 96) for packed FP4 only, where bit 31 is set
    """

    m: int
    n: int
    a_format: str
    b_format: str
    a_negate: bool
    b_negate: bool
    a_mn_major: bool
    b_mn_major: bool
    accumulator: str
    saturate: bool
    scale_format: str
    a_scale_id: int
    b_scale_id: int
    k_bytes: int

    @classmethod
    @lru_cache(maxsize=1024)
    def decode(cls, word: int, kind: str) -> InstructionDescriptor:
        """Decode for `kind` (without the `kind::` prefix).

        Raises SimError for an unknown kind or format code, an accumulator type that the kind has not, sparsity, and K = 96 of other than
        packed FP4.
        """
        formats = _FORMATS.get(kind)
        if formats is None:
            raise SimError(f"tcgen05.mma kind::{kind} is not modeled ({', '.join(_FORMATS)} are)")
        scaled = kind in BLOCK_SCALED_KINDS
        if (word >> 2) & 1:
            raise SimError(f"instruction descriptor {word:#010x}: sparsity is not modeled")
        accumulators, code = _ACCUMULATORS.get(kind, {1: "f32"}), 1 if scaled else (word >> 4) & 3
        if code not in accumulators:
            allowed = ", ".join(f"{number} {name}" for number, name in accumulators.items())
            raise SimError(f"instruction descriptor {word:#010x}: accumulator type {code}; kind::{kind} has {allowed}")
        long = bool(scaled and word >> 31)
        if long and kind == "mxf8f6f4":
            raise SimError(f"instruction descriptor {word:#010x}: K = 96; kind::{kind} has K = 32")
        a_code, b_code = (word >> 7) & 7, (word >> 10) & (3 if kind.startswith("mxf4") else 7)
        if a_code not in formats or b_code not in formats:
            allowed = ", ".join(f"{code} {name}" for code, name in formats.items())
            found = f"formats A {a_code}, B {b_code}"
            raise SimError(f"instruction descriptor {word:#010x}: {found}; kind::{kind} has {allowed}")
        return cls(
            m=((word >> 24) & 31) << 4,
            n=((word >> 17) & 63) << 3,
            a_format=formats[a_code],
            b_format=formats[b_code],
            a_negate=bool((word >> 13) & 1),
            b_negate=bool((word >> 14) & 1),
            a_mn_major=bool((word >> 15) & 1),
            b_mn_major=bool((word >> 16) & 1),
            accumulator=accumulators[code],
            saturate=kind == "i8" and bool((word >> 3) & 1),
            scale_format=("ue8m0" if (word >> 23) & 1 else "ue4m3") if scaled else "",
            a_scale_id=(word >> 29) & 3 if scaled else 0,
            b_scale_id=(word >> 4) & 3 if scaled else 0,
            k_bytes=LONG_K_BYTES if long else K_BYTES,
        )

    def check_shape(self, ctas: int) -> None:
        """Raise unless (m, n) is a dense shape of ``cta_group::ctas`` (PTX ISA, "Matrix shape"; N as CuTe DSL 4.8.1 allows it)."""
        allowed_m, step = ((128, 256), 16) if ctas == 2 else ((64, 128), 8)
        if self.m not in allowed_m or not step <= self.n <= 256 or self.n % step:
            raise SimError(
                f"tcgen05.mma M {self.m} N {self.n} with cta_group::{ctas}: M must be in {allowed_m}, N a multiple of {step} up to 256"
            )

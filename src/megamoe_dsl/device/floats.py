"""Numbers in global memory that are FP32 or BF16, as FP32: what a launch says once for all of a tensor."""

from __future__ import annotations

from typing import Any

from cutlass import Uint32

from .cast import unpack_bf16
from .memory import load_f32, load_f32x2, load_u32
from .ptx import emit_to


def load_float(address: Any, bf16: bool) -> Any:
    """A number from global memory, as FP32."""
    if not bf16:
        return load_f32(address)
    half: Any = emit_to(Uint32, "{{\n\t.reg .b16 h;\n\tld.global.b16 h, [{1}];\n\tmov.b32 {0}, {{h, h}};\n\t}}", address)
    return unpack_bf16(half)[0]


def load_floats(address: Any, bf16: bool) -> tuple[Any, ...]:
    """Two numbers that follow one another, aligned to both, as FP32."""
    return unpack_bf16(Uint32(load_u32(address))) if bf16 else load_f32x2(address)

"""Bit manipulation (PTX ISA: popc, clz, bfind, fns, brev, bfe, bfi, bmsk, shf, isspacep)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from . import Binder, Inline, PtxInstruction, register
from .integer import apply, unsigned


@register("popc")
def population(ins: PtxInstruction, b: Binder) -> Inline:
    """popc: the number of one bits, .u32."""
    return apply(b, ins, lambda x: np.bitwise_count(x).astype(np.uint32), [unsigned(b.dtype(ins))], np.uint32)


def _lengths(x: Any) -> Any:
    return np.array([v.bit_length() for v in x.tolist()], np.uint32)


@register("clz")
def leading_zeros(ins: PtxInstruction, b: Binder) -> Inline:
    """clz: the number of zero bits above the highest one, .u32."""
    t = unsigned(b.dtype(ins))
    return apply(b, ins, lambda x: np.uint32(8 * x.itemsize) - _lengths(x), [t], np.uint32)


@register("bfind")
def find_leading(ins: PtxInstruction, b: Binder) -> Inline:
    """bfind: the highest bit that differs from the sign, or with `.shiftamt` the shift that takes it to the top; else all ones."""
    t, shift = b.dtype(ins), "shiftamt" in ins.parts

    def run(x: Any) -> Any:
        if np.issubdtype(t, np.signedinteger):
            x = np.where(x < 0, ~x, x)
        length = _lengths(x)
        position = np.uint32(8 * x.itemsize) - length if shift else length - np.uint32(1)
        return np.where(length == 0, np.uint32(0xFFFFFFFF), position)

    return apply(b, ins, run, [t], np.uint32)


@register("brev")
def reverse(ins: PtxInstruction, b: Binder) -> Inline:
    """brev: the bits in reverse order."""
    t = unsigned(b.dtype(ins))
    bits = 8 * np.dtype(t).itemsize
    return apply(b, ins, lambda x: np.array([int(f"{v:0{bits}b}"[::-1], 2) for v in x.tolist()], t), [t], t)


def _nth_set(masks: Any, bases: Any, offsets: Any) -> Any:
    out = np.full(len(masks), 0xFFFFFFFF, np.uint32)
    for lane, (mask, base, n) in enumerate(zip(masks.tolist(), bases.tolist(), offsets.tolist(), strict=True)):
        if n == 0:
            found = [base] if mask >> (base & 31) & 1 else []
        else:
            positions = range(base, 32) if n > 0 else range(base, -1, -1)
            found = [j for j in positions if mask >> j & 1][abs(n) - 1 :]
        if found:
            out[lane] = found[0]
    return out


@register("fns")
def find_nth_set(ins: PtxInstruction, b: Binder) -> Inline:
    """fns: the position of the n-th one bit of a .b32 mask from a base, upwards or, for n < 0, downwards; else all ones."""
    return apply(b, ins, _nth_set, [np.uint32, np.uint32, np.int32], np.uint32)


@register("bfe")
def extract(ins: PtxInstruction, b: Binder) -> Inline:
    """bfe: the field of `len` bits at `pos`, zero- or sign-extended by type; `pos` and `len` are taken modulo 256."""
    t = b.dtype(ins)
    bits = 8 * np.dtype(t).itemsize
    signed = np.issubdtype(t, np.signedinteger)

    def run(value: Any, start: Any, length: Any) -> Any:
        out = []
        for v, s, n in zip(value.tolist(), (start & 0xFF).tolist(), (length & 0xFF).tolist(), strict=True):
            if not signed:
                out.append(v >> s & ((1 << min(n, bits)) - 1))
                continue
            # PTX: the sign is the bit at min(pos + len - 1, msb); Python's >> extends it past the word
            n = min(n, bits)
            field = (v >> s) & ((1 << n) - 1) if n else 0
            out.append(field - (1 << n) if n and field >> (n - 1) else field)
        return np.array(out, t)

    return apply(b, ins, run, [t, np.uint32, np.uint32], t)


@register("bfi")
def insert(ins: PtxInstruction, b: Binder) -> Inline:
    """bfi: the low `len` bits of a, put into b at `pos`; `pos` and `len` are taken modulo 256."""
    t = b.dtype(ins)
    bits = 8 * np.dtype(t).itemsize

    def run(field: Any, into: Any, start: Any, length: Any) -> Any:
        out = []
        rows = zip(field.tolist(), into.tolist(), (start & 0xFF).tolist(), (length & 0xFF).tolist(), strict=True)
        for f, v, s, n in rows:
            mask = ((1 << n) - 1) << s & ((1 << bits) - 1)
            out.append(v & ~mask | (f << s) & mask)
        return np.array(out, t)

    return apply(b, ins, run, [t, t, np.uint32, np.uint32], t)


@register("bmsk")
def bit_mask(ins: PtxInstruction, b: Binder) -> Inline:
    """bmsk: a .b32 mask of so many ones from a position; both are clamped to 32 or wrap at 32."""
    clamp = "clamp" in ins.parts

    def run(start: Any, width: Any) -> Any:
        s, n = start.astype(np.uint64), width.astype(np.uint64)
        s, n = (np.minimum(s, 32), np.minimum(n, 32)) if clamp else (s & 31, n & 31)
        return (((np.uint64(1) << n) - np.uint64(1)) << s).astype(np.uint32)

    return apply(b, ins, run, [np.uint32, np.uint32], np.uint32)


@register("shf")
def funnel(ins: PtxInstruction, b: Binder) -> Inline:
    """shf: the upper (`.l`) or lower (`.r`) word of a 64-bit shift of two .b32; the amount is clamped to 32 or wraps at 32."""
    left, wrap = "l" in ins.parts, "wrap" in ins.parts

    def run(low: Any, high: Any, amount: Any) -> Any:
        both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
        n = (amount & np.uint32(31) if wrap else np.minimum(amount, 32)).astype(np.uint64)
        return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return apply(b, ins, run, [np.uint32] * 3, np.uint32)


@register("isspacep")
def is_space(ins: PtxInstruction, b: Binder) -> Inline:
    """isspacep: whether a generic .u64 address lies in the window of a state space."""
    low, high = {"global": (0, SHARED_BASE), "shared": (SHARED_BASE, PARAM_BASE), "param": (PARAM_BASE, LOCAL_BASE),
                 "local": (LOCAL_BASE, 1 << 63)}[ins.parts[1].split("::")[0]]  # fmt: skip
    return apply(b, ins, lambda a: (a >= np.uint64(low)) & (a < np.uint64(high)), [np.uint64], np.bool_)

"""Conversions (PTX ISA, "cvt").

Narrow floats are encoded by searching the table of their values, to nearest even with saturation to the largest finite value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..formats import E2M1, E2M3, E3M2, E4M3, E5M2, UE8M0, bf16_to_f32, f32_to_bf16
from ..operands import DTYPES
from . import Binder, Inline, PtxInstruction, SimError, register
from .floating import flush

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TABLES = {"e4m3": (E4M3, 0x7E, 8), "e5m2": (E5M2, 0x7B, 8), "e2m1": (E2M1, 7, 4), "e2m3": (E2M3, 0x1F, 6), "e3m2": (E3M2, 0x1F, 6)}
_LARGEST = {"f16": 65504.0, "bf16": float(np.uint32(0x7F7F0000).view(np.float32))}
_KINDS = {*DTYPES, "tf32", *(f"{k}x2" for k in (*_TABLES, "ue8m0"))}


def _encoder(kind: str) -> Callable[[Any, bool], Any]:
    """float32 to a narrow format's codes: the thresholds between neighboring codes, ties going to the even one."""
    table, largest, bits = _TABLES[kind]
    values = table[: largest + 1]
    middles = (values[:-1] + values[1:]) / 2
    even = np.arange(largest) % 2 == 0
    thresholds = np.where(even, np.nextafter(middles, np.inf), middles)
    nan = {"e4m3": 0x7F, "e5m2": 0x7F}.get(kind, largest)

    def encode(x: Any, relu: bool) -> Any:
        code = np.searchsorted(thresholds, np.abs(x).astype(np.float64), side="right").astype(np.uint8)
        code = code | (np.signbit(x).astype(np.uint8) << np.uint8(bits - 1))
        if relu:
            code = np.where(x > 0, code, np.uint8(0))
        return np.where(x != x, np.uint8(nan), code)

    return encode


def _pairs(high: Any, low: Any) -> Any:
    both = np.empty((len(low), 2), np.float32)
    both[:, 0], both[:, 1] = low, high
    return both


class Narrow:
    """Two float32 to a pair of narrow codes, the first to the upper byte. A code depends on the upper half of the float32 and on whether
    the rest is 0, because no middle of two codes has more bits: `codes` are by upper half * 2 + (rest is not 0)."""

    def __init__(self, kind: str, relu: bool) -> None:
        upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
        samples = np.stack([upper, upper | np.uint32(1)], axis=1).reshape(-1).view(np.float32)
        with np.errstate(invalid="ignore"):
            self.codes = _encoder(kind)(samples, relu)

    def __call__(self, high: Any, low: Any) -> Any:
        bits = _pairs(high, low).view(np.uint32)
        index = (bits >> np.uint32(15) & np.uint32(0x1FFFE)) | ((bits & np.uint32(0xFFFF)) != 0)
        return self.codes.take(index).view(np.uint16)[:, 0]


def bf16_pair(high: Any, low: Any) -> Any:
    """Two float32 to a packed pair of bfloat16, rounded to nearest even."""
    return f32_to_bf16(_pairs(high, low)).view(np.uint32).reshape(-1)


def _ue8m0(x: Any, up: bool) -> Any:
    """float32 to a power of two: its exponent, rounded up when `up` (cvt.rp) or towards zero; NaN is 255, the sign is ignored."""
    bits = np.ascontiguousarray(x).view(np.uint32) & np.uint32(0x7FFFFFFF)
    exponent = bits >> np.uint32(23)
    fraction = bits & np.uint32(0x7FFFFF)
    if up:
        # a subnormal above 2^-127 needs 2^-126, which is code 1
        exponent = exponent + np.where(exponent == 0, fraction > np.uint32(0x400000), fraction != 0)
    return np.where(x != x, 255, np.minimum(exponent, 254)).astype(np.uint8)


def _encode16(kind: str, towards_zero: bool) -> Callable[[Any], Any]:
    if kind == "bf16":
        return (lambda x: (np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16)).astype(np.uint16)) if towards_zero else f32_to_bf16
    return _f16_towards_zero if towards_zero else lambda x: x.astype(np.float16).view(np.uint16)


def _f16_towards_zero(x: Any) -> Any:
    """float32 to f16 bits, of two neighbors the one nearer to zero."""
    bits = x.astype(np.float16).view(np.uint16)
    away = np.abs(bits.view(np.float16).astype(np.float32)) > np.abs(x)
    return np.where(away, bits - np.uint16(1), bits).astype(np.uint16)


@lru_cache(maxsize=256)
def _to_pair(kind: str, qualifiers: tuple[str, ...]) -> tuple[Callable[[Any, Any], Any], type]:
    relu = "relu" in qualifiers
    if kind in ("f16", "bf16"):
        encode = _encode16(kind, "rz" in qualifiers)
        saturates = "satfinite" in qualifiers
        if encode is f32_to_bf16 and not (saturates or relu):
            return bf16_pair, np.uint32

        def halves(high: Any, low: Any) -> Any:
            both = _pairs(high, low)
            if saturates:
                both = np.clip(both, np.float32(-_LARGEST[kind]), np.float32(_LARGEST[kind]))
            if relu:
                both = np.where((both > 0) | (both != both), both, np.float32(0))
            return np.ascontiguousarray(encode(both)).view(np.uint32).reshape(-1)

        return halves, np.uint32
    if kind == "ue8m0":
        up = "rp" in qualifiers
        return lambda high, low: _ue8m0(low, up).astype(np.uint16) | _ue8m0(high, up).astype(np.uint16) << np.uint16(8), np.uint16
    narrow = Narrow(kind, relu)
    if kind != "e2m1":
        return narrow, np.uint16
    return lambda high, low: ((pair := narrow(high, low)) | pair >> np.uint16(4)).astype(np.uint8), np.uint8


@lru_cache(maxsize=64)
def _from_pair(target: str, kind: str) -> tuple[Callable[[Any], Any], type, type]:
    table = UE8M0 if kind == "ue8m0" else _TABLES[kind][0]
    source = np.uint8 if kind == "e2m1" else np.uint16
    encode = (lambda v: v.astype(np.float16).view(np.uint16)) if target == "f16" else (lambda v: f32_to_bf16(v.astype(np.float32)))
    codes = encode(table)
    width = 4 if kind == "e2m1" else 8

    def run(x: Any) -> Any:
        low, high = x & ((1 << width) - 1), x >> width
        return codes[low & (len(codes) - 1)].astype(np.uint32) | codes[high & (len(codes) - 1)].astype(np.uint32) << np.uint32(16)

    return run, source, np.uint32


@register("cvt")
def convert(ins: PtxInstruction, b: Binder) -> Inline:
    """cvt between scalars, from two .f32 to a packed pair, and between packed pairs; `SimError` for types that are not simulated."""
    kinds = [p for p in ins.parts[1:] if p in _KINDS]
    if len(kinds) != 2:
        raise SimError("cannot tell the types of this conversion")
    to, source = kinds
    dest = ins.operands[0]
    if to.endswith("x2") and source == "f32":
        run, t = _to_pair(to.removesuffix("x2"), ins.parts)
        high, low = (b.expression(o, np.float32) for o in ins.operands[1:3])
        return Inline([(dest, f"{b.name(run)}({high}, {low})", t)])
    if to.endswith("x2"):
        if not source.endswith("x2"):
            raise SimError("unsupported conversion")
        if source in ("f16x2", "bf16x2"):
            return _narrow_from_halves(ins, b, to, source)
        unpack, read, t = _from_pair(to.removesuffix("x2"), source.removesuffix("x2"))
        return Inline([(dest, f"{b.name(unpack)}({b.expression(ins.operands[1], read)})", t)])
    return _scalar(ins, b, to, source)


def _narrow_from_halves(ins: PtxInstruction, b: Binder, to: str, source: str) -> Inline:
    pair, t = _to_pair(to.removesuffix("x2"), ins.parts)
    widen = bf16_to_f32 if source == "bf16x2" else lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32)

    def run(x: Any) -> Any:
        return pair(widen(x >> np.uint32(16)), widen(x & np.uint32(0xFFFF)))

    return Inline([(ins.operands[0], f"{b.name(run)}({b.expression(ins.operands[1], np.uint32)})", t)])


def _scalar(ins: PtxInstruction, b: Binder, to: str, source: str) -> Inline:
    read: type = np.uint16 if source == "bf16" else DTYPES[source]
    result: type = {"bf16": np.uint16, "f16": np.uint16, "tf32": np.uint32}.get(to) or DTYPES[to]
    text = b.expression(ins.operands[1], read)
    floating = source in ("f16", "bf16", "f32", "f64")
    if not floating and to not in ("f16", "bf16", "f32", "f64") and "sat" not in ins.parts:
        # integers: by the source's sign, then cut to the destination; registers may be wider than the type
        return Inline([(ins.operands[0], f"{text}.astype({b.dtype_name(result)})" if read != result else text, result)])
    rounding = next((r for r in _ROUND if r in ins.parts), None)
    ftz, sat, relu = "ftz" in ins.parts, "sat" in ins.parts, "relu" in ins.parts
    if any(r in ins.parts for r in ("rm", "rp")) or ("rz" in ins.parts and to not in ("bf16", "f16", "tf32")):
        raise SimError("this rounding mode is not supported")
    encode16 = _encode16(to, "rz" in ins.parts) if to in ("f16", "bf16") else None

    def run(x: Any) -> Any:
        if source == "bf16":
            x = bf16_to_f32(x)
        if ftz and x.dtype == np.float32:
            x = flush(x)
        if rounding:
            x = _ROUND[rounding](x)
        if relu:
            x = np.where(x > 0, x, x.dtype.type(0))
        if to == "tf32":
            return (np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        if encode16:
            return encode16(x.astype(np.float32))
        if np.issubdtype(result, np.floating):
            out = x.astype(result)
            return np.where(out > 0, np.minimum(out, result(1)), result(0)) if sat else out
        return _to_integer(x, result)

    return Inline([(ins.operands[0], f"{b.name(run)}({text})", result)])


def _to_integer(x: Any, result: type) -> Any:
    """Saturating, NaN to 0 (PTX ISA: float-to-integer conversions clamp to the destination's range)."""
    limits = np.iinfo(result)
    if not np.issubdtype(x.dtype, np.floating):
        low = 0 if np.issubdtype(x.dtype, np.unsignedinteger) else max(limits.min, np.iinfo(x.dtype).min)
        return np.clip(x, low, min(limits.max, np.iinfo(x.dtype).max)).astype(result)
    wide = np.where(x != x, 0.0, x.astype(np.float64))
    out = np.clip(wide, float(limits.min), float(limits.max))
    safe = np.where(out >= float(limits.max), 0.0, out)
    return np.where(out >= float(limits.max), result(limits.max), safe.astype(result))

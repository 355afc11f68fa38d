"""Conversions (PTX ISA, "cvt").

Narrow floats are encoded by searching the table of their values, to nearest even with saturation to the largest finite value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..formats import E2M1, E2M3, E3M2, E4M3, E5M2, UE8M0, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16
from ..memory import DTYPES
from ..values import Value, apply, constant, where
from . import Binder, Inline, PtxInstruction, SimError, register
from .floating import WIDEN, flush

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TABLES = {"e4m3": (E4M3, 0x7E), "e5m2": (E5M2, 0x7B), "e2m1": (E2M1, 7), "e2m3": (E2M3, 0x1F), "e3m2": (E3M2, 0x1F)}
_LARGEST = {"f16": 65504.0, "bf16": float(np.uint32(0x7F7F0000).view(np.float32))}
_KINDS = {*DTYPES, "tf32", *(f"{k}x2" for k in (*_TABLES, "ue8m0"))}


def _pairs(high: Any, low: Any) -> Any:
    both = np.empty((len(low), 2), np.float32)
    both[:, 0], both[:, 1] = low, high
    return both


@lru_cache
def narrow_codes(kind: str, relu: bool) -> Any:
    """Codes of float32 in a narrow format, to the nearest or the even one, by upper half * 2 + (rest is not 0). A code depends on no more,
    as no middle of two codes has more bits."""
    table, largest = _TABLES[kind]
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    x = np.stack([upper, upper | np.uint32(1)], axis=1).reshape(-1).view(np.float32)
    middles = (table[:largest] + table[1 : largest + 1]) / 2
    thresholds = np.where(np.arange(largest) % 2 == 0, np.nextafter(middles, np.inf), middles)
    with np.errstate(invalid="ignore"):
        code = np.searchsorted(thresholds, np.abs(x).astype(np.float64), side="right") + np.signbit(x) * (len(table) // 2)
    code = np.where(x <= 0, 0, code) if relu else code
    return np.where(x != x, {"e4m3": 0x7F, "e5m2": 0x7F}.get(kind, largest), code).astype(np.uint8)


def narrow_pair(high: Any, low: Any, codes: Any) -> Any:
    """Two float32 to a pair of narrow codes, the first to the upper byte."""
    bits = _pairs(high, low).view(np.uint32)
    index = (bits >> np.uint32(15) & np.uint32(0x1FFFE)) | ((bits & np.uint32(0xFFFF)) != 0)
    return codes.take(index).view(np.uint16)[:, 0]


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
    return np.where(x != x, 255, np.minimum(exponent, 254)).astype(np.uint16)


def _f16_towards_zero(x: Any) -> Any:
    """float32 to f16 bits, of two neighbors the one nearer to zero."""
    bits = f32_to_f16(x)
    away = np.abs(f16_to_f32(bits)) > np.abs(x)
    return np.where(away, bits - np.uint16(1), bits).astype(np.uint16)


_ENCODE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bf16": (f32_to_bf16, lambda x: (np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16)).astype(np.uint16)),
    "f16": (f32_to_f16, _f16_towards_zero),
}
"""To nearest, and toward zero."""
_HOW = frozenset({"rz", "rp", "satfinite", "relu"})


@lru_cache
def _encoder(kind: str, qualifiers: frozenset[str]) -> Callable[[Any], Any]:
    """float32 to codes of f16, bf16 or ue8m0, as uint16."""
    if kind == "ue8m0":
        return partial(_ue8m0, up="rp" in qualifiers)
    encode, limit = _ENCODE[kind]["rz" in qualifiers], np.float32(_LARGEST[kind])

    def run(x: Any) -> Any:
        if "satfinite" in qualifiers:
            x = np.clip(x, -limit, limit)
        return encode(np.where((x > 0) | (x != x), x, np.float32(0)) if "relu" in qualifiers else x)

    return run if qualifiers & {"satfinite", "relu"} else encode


def _pair(kind: str, qualifiers: frozenset[str], high: Value, low: Value) -> Value:
    if kind == "bf16" and not qualifiers:
        return apply(bf16_pair, high, low, dtype=np.uint32)
    if kind in _TABLES:
        codes = Value(narrow_codes(kind, "relu" in qualifiers), np.uint8)
        pair = apply(narrow_pair, high, low, codes, dtype=np.uint16)
        return pair if kind != "e2m1" else (pair | pair >> 4).astype(np.uint8)
    upper, lower = (apply(_encoder(kind, qualifiers), one, dtype=np.uint16) for one in (high, low))
    return upper << 8 | lower if kind == "ue8m0" else upper.astype(np.uint32) << 16 | lower.astype(np.uint32)  # type: ignore[no-any-return]


@lru_cache
def _from_pair(target: str, kind: str) -> Callable[[Any], Any]:
    """A packed pair of narrow codes to one of f16 or bf16."""
    table = UE8M0 if kind == "ue8m0" else _TABLES[kind][0]
    codes = _ENCODE[target][0](table.astype(np.float32))
    width = 4 if kind == "e2m1" else 8

    def run(x: Any) -> Any:
        low, high = x & ((1 << width) - 1), x >> width
        return codes[low & (len(codes) - 1)].astype(np.uint32) | codes[high & (len(codes) - 1)].astype(np.uint32) << np.uint32(16)

    return run


@register("cvt")
def convert(ins: PtxInstruction, b: Binder) -> Inline:
    """cvt between scalars, from two .f32 to a packed pair, and between packed pairs; `SimError` for types that are not simulated."""
    kinds = [p for p in ins.parts[1:] if p in _KINDS]
    if len(kinds) != 2:
        raise SimError("cannot tell the types of this conversion")
    (to, source), (dest, first, *others), how = kinds, ins.operands, _HOW.intersection(ins.parts)
    if not to.endswith("x2"):
        return Inline([(dest, _scalar(ins.parts, how, b.value(first, DTYPES[source]), to, source))])
    to, source = to.removesuffix("x2"), source.removesuffix("x2")
    if source == "f32":
        return Inline([(dest, _pair(to, how, *(b.value(o, np.float32) for o in (first, *others[:1]))))])
    if not kinds[1].endswith("x2"):
        raise SimError("unsupported conversion")
    if source in _ENCODE:
        word = b.value(first, np.uint32)
        high, low = (apply(WIDEN[source], half.astype(np.uint16), dtype=np.float32) for half in (word >> 16, word))
        return Inline([(dest, _pair(to, how, high, low))])
    return Inline([(dest, apply(_from_pair(to, source), b.value(first, np.uint8 if source == "e2m1" else np.uint16), dtype=np.uint32))])


_FLOATING = ("f16", "bf16", "f32", "f64")


def _scalar(qualifiers: tuple[str, ...], how: frozenset[str], x: Value, to: str, source: str) -> Value:
    result: type = {"bf16": np.uint16, "f16": np.uint16, "tf32": np.uint32}.get(to) or DTYPES[to]
    if source not in _FLOATING and to not in _FLOATING and "sat" not in qualifiers:
        return x.astype(result)  # by the source's sign, then cut to the destination; registers may be wider than the type
    if any(r in qualifiers for r in ("rm", "rp")) or ("rz" in qualifiers and to not in ("bf16", "f16", "tf32")):
        raise SimError("this rounding mode is not supported")
    if source == "bf16":
        x = apply(bf16_to_f32, x, dtype=np.float32)
    if "ftz" in qualifiers and x.dtype is np.float32:
        x = apply(flush, x)
    if rounding := next((r for r in _ROUND if r in qualifiers), None):
        x = apply(_ROUND[rounding], x)
    if to == "tf32":
        x = where((x > 0) | (x != x), x, constant(0, x.dtype)) if "relu" in how else x
        bits = x.view(np.uint32)
        added = 0 if "rz" in how else 0xFFF + (bits >> 13 & 1) if "rn" in qualifiers else 0x1000  # .rna: ties away from zero
        return where(x == x, bits + added & 0xFFFFE000, constant(0x7FFFFFFF, np.uint32))
    if to in _ENCODE:
        return apply(_encoder(to, how), x.astype(np.float32), dtype=np.uint16)
    if not np.issubdtype(result, np.floating):
        return apply(_to_integer(result), x, dtype=result)
    out = x.astype(result)
    return where(out > 0, apply(np.minimum, out, constant(1, result)), constant(0, result)) if "sat" in qualifiers else out


@lru_cache
def _to_integer(result: type) -> Callable[[Any], Any]:
    """Saturating, NaN to 0 (PTX ISA: float-to-integer conversions clamp to the destination's range)."""
    limits = np.iinfo(result)

    def run(x: Any) -> Any:
        if not np.issubdtype(x.dtype, np.floating):
            low = 0 if np.issubdtype(x.dtype, np.unsignedinteger) else max(limits.min, np.iinfo(x.dtype).min)
            return np.clip(x, low, min(limits.max, np.iinfo(x.dtype).max)).astype(result)
        wide = np.where(x != x, 0.0, x.astype(np.float64))
        out = np.clip(wide, float(limits.min), float(limits.max))
        safe = np.where(out >= float(limits.max), 0.0, out)
        return np.where(out >= float(limits.max), result(limits.max), safe.astype(result))

    return run

"""Floating-point arithmetic, and directed rounding of float32: `.rm` (down), `.rp` (up) and `.rz` (toward zero).

Rounding is to nearest even unless the instruction says otherwise. Approximate functions (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh,
div.approx and div.full), which the ISA only bounds, give the exact result rounded to float32: hardware may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np

from ..formats import bf16_to_f32, f16_to_f32, f32_to_bf16
from ..memory import DTYPES
from ..operands import COMBINED
from ..values import apply
from . import Binder, Inline, PtxInstruction, SimError, register

MODES = ("rm", "rp", "rz")


def directed(base: str, mode: str) -> Callable[..., Any]:
    """The operation `base` (add, sub, mul, fma or mad) on float32 arrays, rounded once in the direction of `mode`.  Products are exact in
    float64, sums are kept with their error, so that every result is rounded from the exact one.  Raises SimError for another operation."""
    if base not in ("add", "sub", "mul", "fma", "mad"):
        raise SimError(f"{base}.{mode} is not supported, only rounding to nearest is")

    def run(*sources: Any) -> Any:
        x, y, *rest = (s.astype(np.float64) for s in sources)
        if base == "mul":
            exact, error = x * y, np.zeros_like(x)
        else:
            x, y = (x * y, rest[0]) if rest else (x, -y if base == "sub" else y)
            exact = x + y
            kept = exact - x
            error = (x - (exact - kept)) + (y - kept)  # what rounding lost (Knuth's two-sum)
            if mode == "rm":  # the zero that addends of opposite signs give when rounding down is negative
                exact = np.where((exact == 0) & (error == 0) & (np.signbit(x) != np.signbit(y)), -0.0, exact)
        nearest = exact.astype(np.float32)
        rest = (exact - nearest) + error  # decides whether to go to the neighbor of the nearest one
        down = (rest < 0) & ((mode == "rm") | ((mode == "rz") & (nearest > 0)))
        up = (rest > 0) & ((mode == "rp") | ((mode == "rz") & (nearest < 0)))
        moved = np.nextafter(nearest, np.where(down, np.float32(-np.inf), np.float32(np.inf)))
        return np.where(down | up, moved, nearest)

    return run


_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_FLOATS = ("f32", "f64", "f32x2", *_HALVES)
# Arrays: numpy takes them a good deal faster than scalars.
_MIDPOINT_BITS, _MIDPOINT = np.array([0x1FFFFFFF], np.uint64), np.array([0x10000000], np.uint64)
_SMALLEST_NORMAL = np.array([1.17549435e-38], np.float32)


def is_float(ins: PtxInstruction) -> bool:
    return ins.parts[-1] in _FLOATS


def flush(x: Any) -> Any:
    """`.ftz`: subnormals become zero of the same sign."""
    return x * (np.abs(x) >= _SMALLEST_NORMAL)


def fma32(a: Any, b: Any, c: Any) -> Any:
    """a * b + c in float32 with one rounding.  The product is exact in float64. The sum rounds there once more, which matters only when it
    lands on the midpoint of two float32: then the error of the sum decides. (Not corrected for subnormal results.)"""
    p = a.astype(np.float64) * b
    s = p + c
    if b"\x01" in (middle := (s.view(np.uint64) & _MIDPOINT_BITS) == _MIDPOINT).tobytes():
        t = s - p
        error = (p - (s - t)) + (c - t)
        away = np.where(error > 0, np.inf, -np.inf)
        s = np.where(middle & (error != 0) & np.isfinite(s), np.nextafter(s, away), s)
    return s.astype(np.float32)


def _to_odd(x: Any) -> Any:
    """float64 to float32, rounded to odd where inexact, so that a later rounding to bfloat16 is the only one."""
    y = x.astype(np.float32)
    inexact = (y.astype(np.float64) != x) & np.isfinite(x) & np.isfinite(y) & ((y.view(np.uint32) & np.uint32(1)) == 0)
    return np.where(inexact, np.nextafter(y, np.where(x > y, np.float32(np.inf), np.float32(-np.inf))), y)


_FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.fmin, "max": np.fmax, "neg": np.negative,
    "abs": np.abs, "sqrt": np.sqrt, "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "fma": lambda a, b, c: a * b + c, "mad": lambda a, b, c: a * b + c,
    "copysign": lambda sign, value: np.copysign(value, sign),
}  # fmt: skip
_THROUGH_64 = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")


def _extreme(base: str, qualifiers: tuple[str, ...]) -> Any:
    """min or max: a number rather than NaN unless with .NaN; with .xorsign.abs that of the magnitudes, with the sign of the product."""
    function = COMBINED[base] if "NaN" in qualifiers else _FUNCTIONS[base]
    if "xorsign" not in qualifiers:
        return function
    return lambda a, b: np.copysign(function(np.abs(a), np.abs(b)), np.where(np.signbit(a) == np.signbit(b), 1, -1).astype(a.dtype))


@lru_cache(maxsize=256)
def _half_function(base: str, kind: str, qualifiers: tuple[str, ...]) -> Any:
    """An operation on 16-bit floats given as uint16 bits."""
    function = _extreme(base, qualifiers) if base in ("min", "max") else _FUNCTIONS[base]
    widen = bf16_to_f32 if kind == "bf16" else f16_to_f32

    def run(*sources: Any) -> Any:
        exact = function(*(widen(s).astype(np.float64) for s in sources))
        if "relu" in qualifiers:
            exact = np.where(exact > 0, exact, 0.0)
        return f32_to_bf16(_to_odd(exact)) if kind == "bf16" else exact.astype(np.float16).view(np.uint16)

    return run


@lru_cache(maxsize=256)
def _single(base: str, qualifiers: tuple[str, ...]) -> Any:
    function = _FUNCTIONS[base]
    if mode := next((part for part in qualifiers if part in MODES), None):
        run: Any = directed(base, mode)
    elif base in ("fma", "mad"):
        run = fma32
    elif base in _THROUGH_64:
        run = lambda x: function(x.astype(np.float64)).astype(np.float32)  # noqa: E731
    elif base in ("min", "max"):
        run = _extreme(base, qualifiers)
    else:
        run = function
    ftz, sat, relu = "ftz" in qualifiers, "sat" in qualifiers, "relu" in qualifiers
    if not (ftz or sat or relu):
        return run

    def modified(*sources: Any) -> Any:
        out = run(*(flush(s) for s in sources)) if ftz else run(*sources)
        out = flush(out) if ftz else out
        if relu:
            out = np.where(out > 0, out, np.float32(0))
        return np.where(out > 0, np.minimum(out, np.float32(1)), np.float32(0)) if sat else out

    return modified


@lru_cache(maxsize=256)
def _packed(function: Any, element: type) -> Any:
    """A function of elements as one of words that hold several."""
    return lambda *words: function(*(one.view(element) for one in words)).view(words[0].dtype)


@register("copysign", "fma", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def build_float(ins: PtxInstruction, b: Binder) -> Inline:
    """Any arithmetic instruction whose last part is a floating-point type."""
    base, kind, dest = ins.parts[0], ins.parts[-1], ins.operands[0]
    if any(r in ins.parts for r in MODES) and (kind not in ("f32", "f32x2") or "f32" in ins.parts[:-1]):
        raise SimError("only rounding to nearest is supported in arithmetic other than f32 and f32x2")
    if "f32" in ins.parts[:-1] and kind in ("f16", "bf16"):
        return _mixed(ins, b)
    dtype = np.uint16 if kind in ("f16", "bf16") else DTYPES[kind]
    if kind in _HALVES:
        function = _half_function(base, kind.removesuffix("x2"), ins.parts)
    else:
        function = _FUNCTIONS[base] if kind == "f64" else _single(base, ins.parts)
    if kind.endswith("x2"):
        function = _packed(function, np.float32 if kind == "f32x2" else np.uint16)
    first, *others = (b.value(o, dtype) for o in ins.operands[1:])
    if base in ("min", "max"):  # of two or three
        return Inline([(dest, reduce(partial(apply, function), others, first))])
    return Inline([(dest, apply(function, first, *others))])


def _mixed(ins: PtxInstruction, b: Binder) -> Inline:
    """add/sub/fma.f32.{f16,bf16}: the narrow sources are widened, the last one is float32."""
    widen = bf16_to_f32 if ins.parts[-1] == "bf16" else f16_to_f32
    *small, last = ins.operands[1:]
    sources = [*(apply(widen, b.value(o, np.uint16), dtype=np.float32) for o in small), b.value(last, np.float32)]
    return Inline([(ins.operands[0], apply(fma32 if ins.parts[0] == "fma" else _FUNCTIONS[ins.parts[0]], *sources))])


@register("testp")
def test_property(ins: PtxInstruction, b: Binder) -> Inline:
    """testp: a predicate on a class of numbers; `.normal` and `.subnormal` raise `SimError`."""
    tests: dict[str, Any] = {"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan, "number": lambda x: ~np.isnan(x)}
    if ins.parts[1] not in tests:
        raise SimError(f"testp.{ins.parts[1]} is not supported")
    return Inline([(ins.operands[0], apply(tests[ins.parts[1]], b.value(ins.operands[1], b.dtype(ins)), dtype=np.bool_))])

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


WIDEN = {"bf16": bf16_to_f32, "f16": f16_to_f32}
_FLOATS = ("f32", "f64", "f32x2", "f16", "bf16", "f16x2", "bf16x2")
# Arrays: numpy takes them a good deal faster than scalars.
_MIDPOINT_BITS, _MIDPOINT = np.array([0x1FFFFFFF], np.uint64), np.array([0x10000000], np.uint64)
_SMALLEST_NORMAL = np.array([1.17549435e-38], np.float32)


def is_float(ins: PtxInstruction) -> bool:
    return ins.parts[0] in _FUNCTIONS and ins.parts[-1] in _FLOATS


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
def _function(base: str, kind: str, qualifiers: tuple[str, ...]) -> Any:
    """An operation on f32, or on f16 and bf16 given as uint16 bits, which float64 widens so that only the result is rounded."""
    run, half, modes = _FUNCTIONS[base], kind in WIDEN, [part for part in qualifiers if part in MODES]
    if base in ("min", "max"):
        run = _extreme(base, qualifiers)
    elif modes:
        run = directed(base, modes[0])
    elif base in ("fma", "mad") and not half:
        run = fma32
    elif base in _THROUGH_64 and not half:
        run = lambda x: _FUNCTIONS[base](x.astype(np.float64)).astype(np.float32)  # noqa: E731
    ftz, relu, sat = "ftz" in qualifiers and not half, "relu" in qualifiers, "sat" in qualifiers
    if not (half or ftz or relu or sat):
        return run

    def modified(*sources: Any) -> Any:
        values = [WIDEN[kind](one).astype(np.float64) if half else flush(one) if ftz else one for one in sources]
        out = flush(run(*values)) if ftz else run(*values)
        if relu or sat:
            out = np.where(out > 0, np.minimum(out, out.dtype.type(1)) if sat else out, out.dtype.type(0))
        return out if not half else f32_to_bf16(_to_odd(out)) if kind == "bf16" else out.astype(np.float16).view(np.uint16)

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
    mixed, single = kind in WIDEN and "f32" in ins.parts[:-1], kind.removesuffix("x2")
    sources = [b.value(o, np.uint16 if kind in WIDEN else DTYPES[kind]) for o in ins.operands[1:]]
    if mixed:  # the last source is float32
        sources = [*(apply(WIDEN[kind], one, dtype=np.float32) for one in sources[:-1]), b.value(ins.operands[-1], np.float32)]
    function = _FUNCTIONS[base] if kind == "f64" else _function(base, "f32" if mixed else single, ins.parts)
    if kind != single:
        function = _packed(function, np.float32 if kind == "f32x2" else np.uint16)
    if base in ("min", "max"):  # of two or three
        return Inline([(dest, reduce(partial(apply, function), sources))])
    return Inline([(dest, apply(function, *sources))])

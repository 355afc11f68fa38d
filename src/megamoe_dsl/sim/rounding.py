"""Directed rounding of float32 arithmetic: `.rm` (down), `.rp` (up) and `.rz` (toward zero)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import SimError

MODES = ("rm", "rp", "rz")


def _sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y in float64, and what rounding lost (Knuth's two-sum)."""
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def _down_zero(s: Any, error: Any, x: Any, y: Any) -> Any:
    """The zero that addends of opposite signs give when rounding down is negative."""
    return np.where((s == 0) & (error == 0) & (np.signbit(x) != np.signbit(y)), -0.0, s)


def directed(base: str, mode: str) -> Callable[..., Any]:
    """The operation `base` (add, sub, mul, fma or mad) on float32 arrays, rounded once in the direction of `mode`.

    Products are exact in float64, sums are kept with their error, so that every result is rounded from the exact one.  Raises SimError for
    another operation.
    """
    if base not in ("add", "sub", "mul", "fma", "mad"):
        raise SimError(f"{base}.{mode} is not supported, only rounding to nearest is")

    def run(*sources: Any) -> Any:
        x, y, *rest = (s.astype(np.float64) for s in sources)
        if base == "mul":
            exact, error = x * y, np.zeros_like(x)
        else:
            x, y = (x * y, rest[0]) if rest else (x, -y if base == "sub" else y)
            exact, error = _sum(x, y)
            exact = _down_zero(exact, error, x, y) if mode == "rm" else exact
        return _round(exact, error, mode)

    return run


def _round(exact: Any, error: Any, mode: str) -> Any:
    """exact + error as float32; their difference from the nearest one decides whether to go to its neighbor."""
    nearest = exact.astype(np.float32)
    rest = (exact - nearest) + error
    down = (rest < 0) & ((mode == "rm") | ((mode == "rz") & (nearest > 0)))
    up = (rest > 0) & ((mode == "rp") | ((mode == "rz") & (nearest < 0)))
    moved = np.nextafter(nearest, np.where(down, np.float32(-np.inf), np.float32(np.inf)))
    return np.where(down | up, moved, nearest)

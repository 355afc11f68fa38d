"""limit * tanh(x / limit), in registers."""

from __future__ import annotations

from functools import reduce
from typing import Any

from cutlass import Float32

from .cast import LOG2E, fma
from .ptx import emit_to

SERIES_BELOW = 0.55
SERIES = (-0.33333318, 0.13332602, -0.05385389, 0.02107791, -0.0062827)
"""tanh(z) / z = 1 + s * (c0 + s * (c1 + ...)), s = z^2, to 2^-27 of it while |z| is below 0.55: least error of all polynomials so long."""


def soft_limit(x: Any, limit: float) -> Any:
    """Within 5 ulp.  Of small x a polynomial, of others 1 - 2 / (1 + exp(2 |z|)) with x's sign; infinite exponentials give the limit."""
    z = x * Float32(1.0 / limit)
    square = z * z
    series = reduce(lambda sum_, c: fma(sum_, square, Float32(c)), reversed(SERIES[:-1]), Float32(SERIES[-1]))
    near = fma(x * square, series, x)
    magnitude = emit_to(Float32, "abs.f32 {}, {};", z)
    power = emit_to(Float32, "ex2.approx.ftz.f32 {}, {};", magnitude * Float32(2 * LOG2E))
    rest = emit_to(Float32, "rcp.approx.ftz.f32 {}, {};", power + Float32(1.0))
    far = emit_to(Float32, "copysign.f32 {}, {}, {};", x, fma(rest, Float32(-2.0 * limit), Float32(limit)))
    choose = "{{\n\t.reg .pred p;\n\tsetp.lt.f32 p, {1}, {2};\n\tselp.f32 {0}, {3}, {4}, p;\n\t}}"
    return emit_to(Float32, choose, magnitude, Float32(SERIES_BELOW), near, far)

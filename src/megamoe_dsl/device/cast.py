"""Arithmetic in registers: BF16 pairs, sigmoid, E4M3 with UE8M0 scales, bytes in the order of channels.  Functions state their rounding."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from cutlass import Float32, Int32, Uint32

from .ptx import emit_to, emit_to_many
from .warp import over_lanes

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
E4M3_MAX, E2M1_MAX = 448.0, 6.0


def bf16_bits(value: float) -> int:
    """Bits of a float rounded to BF16, nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(value: float) -> float:
    """A float rounded to BF16, nearest even."""
    found: float = struct.unpack("<f", struct.pack("<I", bf16_bits(value) << 16))[0]
    return found


def pack_bf16(low: Any, high: Any) -> Any:
    """Two floats rounded to nearest even in one word.  Packed, because a scalar BF16 conversion is two slow instructions."""
    return emit_to(Uint32, "cvt.rn.bf16x2.f32 {}, {}, {};", high, low)


f32_of_bits = partial(emit_to, Float32, "mov.b32 {}, {};")  # the float that has these bits


def unpack_bf16(pair: Any) -> tuple[Any, Any]:
    return f32_of_bits(pair << 16), f32_of_bits(pair & Uint32(0xFFFF0000))


def add_bf16(low: Any, high: Any, pair: Any, fused: bool) -> tuple[Any, Any]:
    """Both halves of a pair added to two floats; `fused`: in one instruction each (add.f32.bf16, SM100), with the same result."""
    if not fused:
        x, y = unpack_bf16(pair)
        return low + x, high + y
    template = "{{\n\t.reg .b16 l, h;\n\tmov.b32 {{l, h}}, {2};\n\tadd.rn.f32.bf16 {0}, l, {3};\n\tadd.rn.f32.bf16 {1}, h, {4};\n\t}}"
    return emit_to_many([Float32] * 2, template, pair, low, high)


def _with_bf16x2(operation: str, pair: Any, limit: float) -> Any:
    """Both halves against the limit, which goes through a register: these instructions take no immediate."""
    template = f"{{{{\n\t.reg .b32 l;\n\tmov.b32 l, {{2}};\n\t{operation}.bf16x2 {{0}}, {{1}}, l;\n\t}}}}"
    return emit_to(Uint32, template, pair, Uint32(bf16_bits(limit) * 0x10001))


clamp_above_bf16 = partial(_with_bf16x2, "min")
"""min(value, limit) of both halves of a bf16x2; the limit is rounded to BF16."""
clamp_below_bf16 = partial(_with_bf16x2, "max")  # max(value, limit), likewise


def times_sigmoid(value: Any, gate: Any, slope: float, fast: bool) -> Any:
    """value / (1 + exp(-slope * gate)); of the gate itself with slope 1 it is SiLU.

    Fast: approximations of exp2 and reciprocal.  Otherwise the exponent's rounding error is carried into the result, and the division is
    rounded to nearest; a power that is infinite, or zero with an infinite error, is not corrected.
    """
    rate = Float32(-slope * LOG2E)
    exponent = gate * rate
    power = emit_to(Float32, "ex2.approx.ftz.f32 {}, {};", exponent)
    if fast:
        return value * emit_to(Float32, "rcp.approx.ftz.f32 {}, {};", power + Float32(1.0))
    error = emit_to(Float32, "{{\n\t.reg .f32 n;\n\tneg.f32 n, {3};\n\tfma.rn.f32 {0}, {1}, {2}, n;\n\t}}", gate, rate, exponent)
    corrected = (
        "{{\n\t.reg .pred p;\n\t.reg .f32 c;\n\tfma.rn.f32 c, {1}, {2}, {1};\n\tsetp.nan.f32 p, c, c;\n\tselp.f32 {0}, {1}, c, p;\n\t}}"
    )
    power = emit_to(Float32, corrected, power, error * Float32(LN2))
    return emit_to(Float32, "div.rn.f32 {}, {}, {};", value, power + Float32(1.0))


def fast_sigmoid(gate: Any, slope: float) -> Any:
    """1 / (1 + exp(-slope * gate)) by the approximations of `times_sigmoid`."""
    power = emit_to(Float32, "ex2.approx.ftz.f32 {}, {};", gate * Float32(-slope * LOG2E))
    return emit_to(Float32, "rcp.approx.ftz.f32 {}, {};", power + Float32(1.0))


fma = partial(emit_to, Float32, "fma.rn.f32 {}, {}, {}, {};")  # a * b + c, rounded once
abs_max = partial(emit_to, Float32, "{{\n\t.reg .f32 x, y;\n\tabs.f32 x, {1};\n\tabs.f32 y, {2};\n\tmax.f32 {0}, x, y;\n\t}}")
"""The larger magnitude of two floats."""
abs_max_bf16 = partial(emit_to, Uint32, "max.xorsign.abs.bf16x2 {}, {}, {};")
"""The larger magnitudes of two bf16x2, half by half, with signs that mean nothing: one instruction, where abs takes one each."""


def larger_of_pair(pair: Any) -> Any:
    return abs_max(*unpack_bf16(pair))


multiply_bf16 = partial(emit_to, Uint32, "mul.rn.bf16x2 {}, {}, {};")
"""Two bf16x2 multiplied half by half, rounded to nearest even; exact with powers of two."""


max_f32 = partial(emit_to, Float32, "max.f32 {}, {}, {};")
max_over_rows = partial(over_lanes, max_f32, masks=(4, 8, 16))
"""Largest over the eight threads of a warp that hold the same column of a 16x256b fragment."""
max_over_quad = partial(over_lanes, max_f32, masks=(1, 2))  # over the four threads that hold the same row of a wgmma accumulator


def scale_exponent(amax: Any, largest: float = E4M3_MAX) -> Any:
    """UE8M0 byte e: the smallest with amax <= largest * 2^(e - 127), where `largest` is the element's largest value."""
    bits = emit_to(Uint32, "mov.b32 {}, {};", amax * Float32(1.0 / largest))
    return (bits + Uint32(0x7FFFFF)) >> 23


def inverse_scale(exponent: Any) -> Any:
    """2^(127 - e), as a float built from its bits."""
    return f32_of_bits((Uint32(254) - exponent) << 23)


def pack_e4m3(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """Four floats to E4M3, nearest even, saturating; v0 in the lowest byte."""
    template = (
        "{{\n\t.reg .b16 a, b;\n\tcvt.rn.satfinite.e4m3x2.f32 a, {2}, {1};\n\tcvt.rn.satfinite.e4m3x2.f32 b, {4}, {3};\n\t"
        "mov.b32 {0}, {{a, b}};\n\t}}"
    )
    return emit_to(Int32, template, v0, v1, v2, v3)


def nearest_e4m3(value: Any) -> tuple[Any, Any]:
    """A float as E4M3, nearest even, saturating: the byte, and what it stands for."""
    template = (
        "{{\n\t.reg .b16 a, l, h;\n\t.reg .b32 x;\n\t.reg .f32 z;\n\tmov.f32 z, 0f00000000;\n\tcvt.rn.satfinite.e4m3x2.f32 a, z, {2};\n\t"
        "cvt.rn.f16x2.e4m3x2 x, a;\n\tmov.b32 {{l, h}}, x;\n\tcvt.f32.f16 {1}, l;\n\tcvt.u32.u16 {0}, a;\n\t}}"
    )
    code, nearest = emit_to_many([Int32, Float32], template, value)
    return code, nearest


def unpack_e4m3(word: Any) -> tuple[Any, ...]:
    """Four E4M3 as floats, the lowest byte first; exact."""
    template = (
        "{{\n\t.reg .b16 a, b, h<4>;\n\t.reg .b32 x, y;\n\tmov.b32 {{a, b}}, {4};\n\tcvt.rn.f16x2.e4m3x2 x, a;\n\t"
        "cvt.rn.f16x2.e4m3x2 y, b;\n\tmov.b32 {{h0, h1}}, x;\n\tmov.b32 {{h2, h3}}, y;\n\t"
        + "".join(f"cvt.f32.f16 {{{i}}}, h{i};\n\t" for i in range(4))
        + "}}"
    )
    return emit_to_many([Float32] * 4, template, word)


def pack_e2m1(*values: Any) -> Any:
    """Eight floats to E2M1, nearest even, saturating; the first in the lowest nibble."""
    pairs = "".join(f"cvt.rn.satfinite.e2m1x2.f32 {name}, {{{2 * i + 2}}}, {{{2 * i + 1}}};\n\t" for i, name in enumerate("abcd"))
    return emit_to(Uint32, f"{{{{\n\t.reg .b8 a, b, c, d;\n\t{pairs}mov.b32 {{0}}, {{{{a, b, c, d}}}};\n\t}}}}", *values)


SERIES_BELOW = 0.55
SERIES = (-0.33333318, 0.13332602, -0.05385389, 0.02107791, -0.0062827)
"""tanh(z) / z = 1 + s * (c0 + s * (c1 + ...)), s = z^2, to 2^-27 of it while |z| is below 0.55: least error of all polynomials so long."""


def soft_limit(x: Any, limit: float) -> Any:
    """limit * tanh(x / limit) in registers, within 5 ulp.

    Small x take a polynomial, others 1 - 2 / (1 + exp(2 |z|)) with x's sign; infinite exponentials give the limit."""
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


permute = partial(emit_to, Uint32, "prmt.b32 {}, {}, {}, {};")
"""(low, high, selector): bytes of two words; digit i of the selector, the lowest first, says which of the eight byte i is."""


def joined_pairs(chunk: Sequence[Any]) -> tuple[Any, ...]:
    """Word q has channels 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 in bytes, or q and q + 4 in BF16."""
    return tuple(permute(a, b, half) for half in (0x5410, 0x7632) for a, b in (chunk[:2], chunk[2:]))


def transposed(chunk: Sequence[Any]) -> tuple[Any, ...]:
    """Word q has channels q, q + 4, q + 8 and q + 12."""
    low, high = ([permute(a, b, selector) for a, b in (chunk[:2], chunk[2:])] for selector in (0x5140, 0x7362))
    return tuple(permute(first, second, selector) for first, second in (low, high) for selector in (0x5410, 0x7632))

"""Directed rounding against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from ptx_cases import lanes, run

from megamoe_dsl.sim import SimError

VALUES = np.array([1.0, 1.5, -1.0, 3e-39, 0.1, -0.1, 16777216.0, -2.5e10], np.float32).repeat(4)
SOURCES = [VALUES[np.random.default_rng(seed).permutation(32)] for seed in range(3)]
EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "fma": lambda x, y, z: x * y + z,
}


def down(exact: Fraction) -> np.float32:
    """The largest float32 that is not above."""
    near = np.float32(float(exact))
    return near if Fraction(float(near)) <= exact else np.nextafter(near, np.float32(-np.inf))


def rounded(mode: str, exact: Fraction) -> np.float32:
    return down(exact) if mode == "rm" or (mode == "rz" and exact > 0) else -down(-exact)


@pytest.mark.parametrize("mode", ["rm", "rp", "rz"])
@pytest.mark.parametrize("base", list(EXACT))
def test_every_result_is_the_neighbor_of_the_exact_one(base, mode):
    sources = SOURCES[: 3 if base == "fma" else 2]
    operands = ", ".join(f"%f{10 + i}" for i in range(len(sources)))
    moves = "".join(f"mov.b32 %f{10 + i}, %r{i + 1};" for i in range(len(sources)))
    got = lanes(f"{moves} {base}.{mode}.f32 %f1, {operands}; mov.b32 %r9, %f1;", *sources, result="%r9", dtype=np.float32)
    want = [rounded(mode, EXACT[base](*(Fraction(float(s[i])) for s in sources))) for i in range(32)]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


def test_flushing_and_pairs():
    """fma.rm.ftz.f32x2 on the halves, a subnormal source counts as zero."""
    x = np.array([1.0, 3e-39, 0.1, -0.1] * 8, np.float32)
    one = f"0f{np.float32(1).view(np.uint32):08X}"
    text = (
        f"mov.b64 %rd1, {{%r1, %r1}}; mov.b64 %rd2, {{{one}, {one}}}; fma.rm.ftz.f32x2 %rd3, %rd1, %rd1, %rd2; mov.b64 {{%r8, %r9}}, %rd3;"
    )
    got = lanes(text, x, result="%r9", dtype=np.float32)
    values = [0 if abs(v) < 1e-38 else Fraction(float(v)) for v in x]
    np.testing.assert_array_equal(got, np.array([down(v * v + 1) for v in values], np.float32))


def test_zeros_and_overflow():
    big = np.full(32, np.finfo(np.float32).max)
    text = "mov.b32 %f2, %r1; {} %f1, %f2, %f{}; mov.b32 %r9, %f1;"
    assert lanes(text.format("add.rm.f32", 2), big, result="%r9", dtype=np.float32)[0] == big[0]
    assert lanes(text.format("add.rp.f32", 2), big, result="%r9", dtype=np.float32)[0] == np.inf
    zero = lanes(text.format("sub.rm.f32", 2), big, result="%r9", dtype=np.float32)[0]
    assert zero == 0 and math.copysign(1, zero) == -1


def test_other_types_are_refused():
    with pytest.raises(SimError, match="only rounding to nearest"):
        run("fma.rm.f64 %d1, %d2, %d3, %d4;", [np.zeros(1)])
    with pytest.raises(SimError, match=r"rcp\.rm is not supported"):
        run("rcp.rm.f32 %f1, %f2;", [np.zeros(1)])

"""Floating-point arithmetic and conversions."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from ptx_cases import lanes

RNG = np.random.default_rng(2)
A = RNG.normal(size=32).astype(np.float32)
B = (RNG.normal(size=32) * 1e3).astype(np.float32)
C = RNG.normal(size=32).astype(np.float32)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448, 449, 464, 465, 1e9, -1e9, 1e-9, 0.0019, 57344, 61440, 6.1e4], np.float32)
MIXED = np.concatenate([SPECIAL, RNG.normal(size=16).astype(np.float32)])


def same(got, want):
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), np.ascontiguousarray(want).view(f"u{got.itemsize}"))


def test_basic_arithmetic():
    with np.errstate(all="ignore"):
        same(lanes("add.rn.f32 %f3, %r1, %r2;", A, B, result="%f3", dtype=np.float32), A + B)
        same(lanes("sub.f32 %f3, %r1, %r2;", A, B, result="%f3", dtype=np.float32), A - B)
        same(lanes("div.rn.f32 %f3, %r1, %r2;", A, B, result="%f3", dtype=np.float32), A / B)
        same(lanes("mul.f32 %f3, %r1, 0f40490FDB;", A, result="%f3", dtype=np.float32), A * np.float32(np.pi))
    same(lanes("neg.f32 %f3, %r1;", A, result="%f3", dtype=np.float32), -A)
    same(lanes("abs.f32 %f3, %r1;", A, result="%f3", dtype=np.float32), np.abs(A))
    same(lanes("max.f32 %f3, %r1, %r2;", MIXED, A, result="%f3", dtype=np.float32), np.fmax(MIXED, A))
    assert np.isnan(lanes("max.NaN.f32 %f3, %r1, %r2;", MIXED, A, result="%f3", dtype=np.float32)[4])


def test_fma_rounds_once():
    """Exact rational arithmetic as the reference, with sums that land next to a midpoint of two float32."""
    a, b = A.copy(), B.copy()
    c = np.round(C * 100).astype(np.float32)
    a[:4], b[:4], c[:4] = np.float32(1 + 2**-12), np.float32(1 + 2**-12), [2**-70, -(2**-70), 0, 2**-24]
    got = lanes("fma.rn.f32 %f4, %r1, %r2, %r3;", a, b, c, result="%f4", dtype=np.float32)
    for x, y, z, g in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(g)) - exact)
        for other in (np.nextafter(g, np.float32(np.inf)), np.nextafter(g, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(other)) - exact)
    assert got[0] != got[1]  # 2^-70 decides on which side of the midpoint the sum lies


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("ex2.approx.f32", np.exp2),
        ("sqrt.rn.f32", np.sqrt),
        ("rcp.approx.f32", np.reciprocal),
        ("tanh.approx.f32", np.tanh),
        ("lg2.approx.f32", np.log2),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
    ],
)
def test_functions_are_rounded_exact_results(opcode, function):
    x = np.abs(A)
    same(lanes(f"{opcode} %f3, %r1;", x, result="%f3", dtype=np.float32), function(x.astype(np.float64)).astype(np.float32))


def test_results_below_zero_can_be_zero():
    x, y = A.astype(np.float16), B.astype(np.float16)
    text = "cvt.u16.u32 %h4, %r1; cvt.u16.u32 %h5, %r2; fma.rn.relu.f16 %h3, %h4, %h5, %h4; mov.b32 %r9, {%h3, %h3};"
    got = lanes(text, *(one.view(np.uint16).astype(np.uint32) for one in (x, y)), result="%r9", dtype=np.uint32)
    want = np.maximum(x.astype(np.float64) * y + x, 0).astype(np.float16)
    assert got.astype(np.uint16).view(np.float16).tolist() == want.tolist()


def test_subnormal_numbers_are_flushed_and_results_saturated():
    x = np.array([-1.5, 1e-40, -1e-40, 0.25, 3, 2.0**-126, -(2.0**-126), np.nan] * 4, np.float32)
    y = np.repeat(np.array([1, -0.5, 1e-39, 2.0**-127], np.float32), 8)
    flushed = [np.where(np.abs(one) < 2.0**-126, np.float32(0), one) for one in (x, y)]
    total, product = flushed[0] + flushed[1], flushed[0] * flushed[1]
    for opcode, want in (("add.rn.ftz.f32", total), ("mul.rn.ftz.f32", product)):
        found = lanes(f"{opcode} %f3, %r1, %r2;", x, y, result="%f3", dtype=np.float32)
        np.testing.assert_array_equal(found, np.where(np.abs(want) < 2.0**-126, 0, want))
    found = lanes("add.sat.f32 %f3, %r1, %r2;", x, y, result="%f3", dtype=np.float32)
    np.testing.assert_array_equal(found, np.nan_to_num(np.clip(x + y, 0, 1)))


def test_classes_of_numbers():
    x = np.array([0, 1.5, np.inf, -np.inf, np.nan, 1e-40, -2, 3] * 4, np.float32)
    for kind, want in (("finite", np.isfinite(x)), ("infinite", np.isinf(x)), ("notanumber", np.isnan(x)), ("number", ~np.isnan(x))):
        got = lanes(f"testp.{kind}.f32 %p1, %r1; selp.b32 %r3, 1, 0, %p1;", x, result="%r3", dtype=np.uint32)
        assert got.astype(bool).tolist() == want.tolist()


def test_literals_of_doubles():
    got = lanes("mov.f64 %d1, 0d400921FB54442D18; cvt.rn.f32.f64 %f3, %d1;", A, result="%f3", dtype=np.float32)
    assert got[0] == np.float32(np.pi)


def test_packed_f32x2():
    pair = np.stack([A, B], axis=1).reshape(-1).view(np.uint64)
    other = np.stack([C, A], axis=1).reshape(-1).view(np.uint64)
    same(
        lanes("add.rn.f32x2 %rd3, %rd1, %rd2;", pair, other, result="%rd3", dtype=np.uint64).view(np.float32),
        pair.view(np.float32) + other.view(np.float32),
    )
    got = lanes("fma.rn.f32x2 %rd3, %rd1, %rd2, %rd2;", pair, other, result="%rd3", dtype=np.uint64).view(np.float32)
    x, y = pair.view(np.float32).astype(np.float64), other.view(np.float32).astype(np.float64)
    np.testing.assert_allclose(got, x * y + y, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize(("kind", "torch_type"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
@pytest.mark.parametrize("operation", ["add", "mul", "min", "max", "sub"])
def test_packed_halves(kind, torch_type, operation):
    x, y = (torch.from_numpy(RNG.normal(size=64)).to(torch_type) for _ in range(2))
    function = {"add": torch.add, "mul": torch.mul, "sub": torch.sub, "min": torch.minimum, "max": torch.maximum}[operation]
    want = function(x, y).view(torch.uint16).numpy().view(np.uint32)
    words = [t.view(torch.uint16).numpy().view(np.uint32) for t in (x, y)]
    same(lanes(f"{operation}.{kind}x2 %r3, %r1, %r2;", *words, result="%r3", dtype=np.uint32), want)


def test_halves_are_rounded_once():
    """7 x 37 and 9 x 29 lie between two BF16; 2^-20, which FP32 has no bit for beside them, decides."""
    x, y, z, want = torch.tensor(
        [[7, 37, -(2**-20), 258], [7, 37, 2**-20, 260], [9, 29, -(2**-20), 260], [9, 29, 2**-20, 262]] * 16
    ).T.contiguous()
    words = [one.bfloat16().view(torch.uint16).numpy().view(np.uint32) for one in (x, y, z, want)]
    same(lanes("fma.rn.bf16x2 %r4, %r1, %r2, %r3;", *words[:3], result="%r4", dtype=np.uint32), words[3])


@pytest.mark.parametrize("operation", ["min", "max"])
def test_magnitudes_with_the_sign_of_the_product(operation):
    """.xorsign.abs, of FP32 and of halves; of NaN and a number it is the number."""
    extreme = {"min": np.fmin, "max": np.fmax}[operation]
    with np.errstate(all="ignore"):
        want = extreme(np.abs(A), np.abs(MIXED)) * np.where(np.signbit(A) == np.signbit(MIXED), 1, -1).astype(np.float32)
    same(lanes(f"{operation}.xorsign.abs.f32 %f3, %r1, %r2;", A, MIXED, result="%f3", dtype=np.float32), want)
    x, y = (torch.from_numpy(RNG.normal(size=64)).bfloat16() for _ in range(2))
    both = {"min": torch.minimum, "max": torch.maximum}[operation](x.abs(), y.abs()) * (x.sign() * y.sign())
    words = [t.view(torch.uint16).numpy().view(np.uint32) for t in (x, y, both)]
    got = lanes(f"{operation}.xorsign.abs.bf16x2 %r3, %r1, %r2;", *words[:2], result="%r3", dtype=np.uint32)
    same(got, words[2])


@pytest.mark.parametrize(("kind", "torch_type"), [("bf16x2", torch.bfloat16), ("f16x2", torch.float16)])
def test_cvt_to_packed_halves_puts_the_first_source_on_top(kind, torch_type):
    got = lanes(f"cvt.rn.{kind}.f32 %r3, %r1, %r2;", MIXED, A, result="%r3", dtype=np.uint32).view(np.uint16).reshape(-1, 2)
    for column, source in ((0, A), (1, MIXED)):
        want = torch.from_numpy(source).to(torch_type)
        back = torch.from_numpy(got[:, column].copy()).view(torch_type)
        assert torch.equal(back.nan_to_num(7), want.nan_to_num(7))


@pytest.mark.parametrize(("kind", "torch_type", "largest"), [("e4m3", torch.float8_e4m3fn, 448.0), ("e5m2", torch.float8_e5m2, 57344.0)])
def test_cvt_to_fp8_saturates(kind, torch_type, largest):
    got = lanes(f"cvt.rn.satfinite.{kind}x2.f32 %h3, %r1, %r2;", MIXED, A, result="%h3", dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    for column, source in ((0, A), (1, MIXED)):
        want = torch.from_numpy(np.clip(source, -largest, largest)).to(torch_type).float()
        back = torch.from_numpy(got[:, column].copy()).view(torch_type).float()
        assert torch.equal(back.nan_to_num(7), want.nan_to_num(7))


def test_fp8_round_trip_is_exact():
    codes = np.arange(256, dtype=np.uint8).reshape(-1, 2).view(np.uint16)[:, 0]
    for part in codes.reshape(-1, 32):
        text = """cvt.rn.f16x2.e4m3x2 %r5, %h1; mov.b32 {%h5, %h6}, %r5; cvt.f32.f16 %f1, %h5; cvt.f32.f16 %f2, %h6;
                  cvt.rn.satfinite.e4m3x2.f32 %h7, %f2, %f1;"""
        got = lanes(text, part, result="%h7", dtype=np.uint16)
        finite = (part.view(np.uint8) & 0x7F) != 0x7F
        np.testing.assert_array_equal(got.view(np.uint8)[finite], part.view(np.uint8)[finite])


@pytest.mark.parametrize(
    ("value", "plain", "finite"),
    [(2049.0, 2048, 2048), (-2051.0, -2050, -2050), (1e6, 65504, 65504), (-np.inf, -np.inf, -65504), (3e-8, 0, 0), (6e-8, 2**-24, 2**-24)],
)
def test_cvt_to_f16_towards_zero(value, plain, finite):
    for modifier, want in (("", plain), (".satfinite", finite)):
        got = lanes(f"cvt.rz{modifier}.f16x2.f32 %r3, %r1, %r1;", np.float32(value), result="%r3", dtype=np.uint32)
        assert (got.view(np.float16) == np.float16(want)).all()


@pytest.mark.parametrize(
    ("mode", "value", "code"), [("rp", 1.0, 127), ("rp", 1.5, 128), ("rz", 1.5, 127), ("rp", 2.0**-127, 0), ("rp", 2.0**-126, 1)]
)
def test_cvt_to_ue8m0(mode, value, code):
    got = lanes(f"cvt.{mode}.satfinite.ue8m0x2.f32 %h3, %r1, %r1;", np.float32(value), result="%h3", dtype=np.uint16)
    assert got[0] == code | code << 8


@pytest.mark.parametrize(
    ("mode", "bits", "want"),
    [
        ("rna", 0x3F801000, 0x3F802000),  # ties: away from zero, to even, toward zero
        ("rn", 0x3F801000, 0x3F800000),
        ("rn", 0x3F803000, 0x3F804000),
        ("rz", 0x3F803FFF, 0x3F802000),
        ("rna", 0xBF800FFF, 0xBF800000),
        ("rn", 0xBF801001, 0xBF802000),
        ("rna", 0xFFFFFFFF, 0x7FFFFFFF),  # NaN
        ("rn", 0x7F800000, 0x7F800000),
    ],
)
def test_cvt_to_tf32(mode, bits, want):
    assert lanes(f"cvt.{mode}.tf32.f32 %r3, %r1;", np.uint32(bits), result="%r3", dtype=np.uint32)[0] == want


def test_cvt_between_integers_and_floats():
    same(lanes("cvt.rzi.s32.f32 %r3, %r1;", B, result="%r3", dtype=np.int32), np.trunc(B).astype(np.int32))
    assert lanes("cvt.rni.s32.f32 %r3, %r1;", np.float32(2.5), result="%r3", dtype=np.int32)[0] == 2
    clamped = lanes("cvt.rzi.s32.f32 %r3, %r1;", SPECIAL.repeat(2), result="%r3", dtype=np.int32)
    assert clamped[[4, 6, 8, 18]].tolist() == [2**31 - 1, -(2**31), 0, 10**9]
    integers = RNG.integers(-(2**31), 2**31, 32, dtype=np.int32)
    same(lanes("cvt.rn.f32.s32 %f3, %r1;", integers, result="%f3", dtype=np.float32), integers.astype(np.float32))
    same(lanes("cvt.s32.s8 %r3, %h1;", integers.astype(np.int8), result="%r3", dtype=np.int32), integers.astype(np.int8).astype(np.int32))
    same(
        lanes("cvt.sat.u8.s32 %h3, %r1; cvt.u32.u8 %r3, %h3;", np.int32(300), result="%r3", dtype=np.uint32)[:1], np.array([255], np.uint32)
    )


def test_setp_on_nan_is_false_when_ordered_and_true_when_not():
    text = "setp.ne.f32 %p1, %r1, %r2; setp.neu.f32 %p2, %r1, %r2; selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p2; add.u32 %r3, %r3, %r4;"
    got = lanes(
        text, np.array([np.nan, 1, 2, 2] * 8, np.float32), np.array([1, 1, 1, np.nan] * 8, np.float32), result="%r3", dtype=np.uint32
    )
    assert got[:4].tolist() == [2, 0, 3, 2]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("add.sat.f16 %h3, %h4, %h4;", [0x0000, 0x3C00, 0x3400, 0x0000]),
        ("cvt.rn.f16.f32 %h3, %r1;", [0xBC00, 0x7C00, 0x3000, 0x7E00]),
        ("cvt.rn.satfinite.f16.f32 %h3, %r1;", [0xBC00, 0x7BFF, 0x3000, 0x7E00]),
        ("cvt.rn.relu.f16.f32 %h3, %r1;", [0x0000, 0x7C00, 0x3000, 0x7E00]),
    ],
)
def test_one_f16_is_clamped_as_its_qualifiers_say(text, want):
    """-1, 1e6, 1/8 and a NaN; `.sat` makes a NaN zero, `.satfinite` and `.relu` keep it."""
    x = np.array([-1, 1e6, 0.125, np.nan], np.float32).repeat(8)
    got = lanes(f"cvt.rn.f16.f32 %h4, %r1; {text}", x, result="%h3", dtype=np.uint16)
    assert got[::8].tolist() == want

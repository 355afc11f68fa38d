"""Casts: every code, every rounding boundary, and the kernel's scale arithmetic."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl import quant
from megamoe_dsl.recipe import RECIPES

torch.set_num_threads(1)


def e4m3_table() -> np.ndarray:
    """Value of every non-negative finite E4M3 code, from the format's definition."""
    values = []
    for code in range(0x7F):
        exponent, mantissa = code >> 3, code & 7
        values.append(mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.array(values)


def nearest_even(x: float, grid: np.ndarray) -> int:
    """Index of the nearest grid value, ties to the even index, saturating."""
    distance = np.abs(grid - min(x, grid[-1]))
    best = np.flatnonzero(distance == distance.min())
    return int(best[0]) if len(best) == 1 else int(next(b for b in best if b % 2 == 0))


def test_decode_e4m3_matches_the_definition():
    codes = torch.arange(0x7F, dtype=torch.uint8)
    assert np.array_equal(quant.decode_e4m3(codes).numpy(), e4m3_table())
    assert np.array_equal(quant.decode_e4m3(codes | 128).numpy(), -e4m3_table())


def test_encode_e4m3_at_every_boundary():
    grid = e4m3_table()
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    around = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))]
    points = np.concatenate([grid, *around, [463.9, 464, 480, 1e30]]).astype(np.float32)
    expected = np.array([nearest_even(float(p), grid) for p in points])
    got = quant.encode_e4m3(torch.from_numpy(points)).view(torch.uint8).numpy()
    assert np.array_equal(got, expected)
    negative = quant.encode_e4m3(torch.from_numpy(-points)).view(torch.uint8).numpy()
    assert np.array_equal(negative, expected | 128)


def test_encode_e2m1_at_every_boundary():
    grid = quant.e2m1_values()[:8].numpy()
    middle = (grid[1:] + grid[:-1]) / 2
    points = np.concatenate([grid, middle, np.nextafter(middle, 0), np.nextafter(middle, 9), [7.0, 1e30]])
    expected = np.array([nearest_even(float(p), grid) for p in points])
    assert np.array_equal(quant.encode_e2m1(torch.from_numpy(points)).numpy(), expected)
    assert np.array_equal(quant.encode_e2m1(torch.from_numpy(-points)).numpy(), expected | 8)


def test_ue8m0_round_trip_and_ceiling():
    codes = torch.arange(255, dtype=torch.uint8)
    # Codes 0 and 1 are 2^-127 and 2^-126: the first is a float32 subnormal, which the bit trick rounds up to code 1.
    assert torch.equal(quant.encode_ue8m0(quant.decode_ue8m0(codes).float())[1:], codes[1:])
    assert quant.encode_ue8m0(torch.tensor([0.0, -0.0, torch.finfo(torch.float32).max])).tolist() == [0, 0, 254]
    assert quant.encode_ue8m0(torch.tensor([1.0, 1.0000001, 2.0, 0.75])).tolist() == [127, 128, 128, 127]
    assert torch.equal(quant.inverse_scale(codes).double() * quant.decode_ue8m0(codes), torch.ones(255, dtype=torch.float64))


def test_scale_byte_at_powers_of_two_times_448():
    exponents = range(-60, 100)
    exact = torch.tensor([448 * 2.0**n for n in exponents], dtype=torch.float32)
    above = torch.nextafter(exact, torch.tensor(math.inf))
    assert quant.e4m3_scale_byte(exact).tolist() == [n + 127 for n in exponents]
    # One ulp above, the rounded product with 1/448 may still be the power of two: the kernel then saturates instead of rescaling.
    product = (above * torch.tensor(1 / 448, dtype=torch.float32)).double()
    expected = [n + 127 + (p > 2.0**n) for n, p in zip(exponents, product.tolist(), strict=True)]
    assert quant.e4m3_scale_byte(above).tolist() == expected


def test_e2m1_scale_byte_at_powers_of_two_times_6():
    """6 * 2^n gives 2^n, the next float 2^(n + 1); the rounded reciprocal gives what a division by 6 would, for every significand."""
    exact = torch.tensor([6.0 * 2.0**n for n in range(-120, 125)], dtype=torch.float32)
    above = torch.nextafter(exact, torch.tensor(math.inf))
    want = torch.arange(7, 252, dtype=torch.uint8)
    assert torch.equal(quant.e2m1_scale_byte(exact), want) and torch.equal(quant.e2m1_scale_byte(above), want + 1)
    near = torch.arange(-2000, 2000) + torch.tensor(6.0).view(torch.int32)
    every = torch.cat([near, torch.arange(0x3F800000, 0x40000000, 97)]).int().view(torch.float32)
    assert torch.equal(quant.e2m1_scale_byte(every), quant.encode_ue8m0(every / 6))


def test_an_encoder_that_counts_boundaries_differs_at_three_ties():
    """docs/reference/formats.md: every tie down and no minus zero, against nearest even with signs; all else is equal."""
    boundaries = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    x = torch.cat([torch.linspace(-7, 7, 28001), torch.tensor(boundaries), torch.tensor([-0.0])])
    counted = sum((x.abs() > boundary).to(torch.uint8) for boundary in boundaries)
    counted = counted | ((x < 0) & (counted != 0)).to(torch.uint8) << 3
    ours = quant.encode_e2m1(x)
    differs = counted != torch.where(ours == 8, 0, ours)
    assert set(x[differs].abs().tolist()) == {0.75, 1.75, 3.5}
    assert (ours[differs] & 7).tolist() == ((counted[differs] & 7) + 1).tolist()
    assert (ours == 8).any() and not (counted == 8).any()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32))
@settings(max_examples=80)
def test_quantize_e4m3_error_is_half_a_step(values):
    x = torch.tensor([values], dtype=torch.float32)
    q, sf = quant.quantize_e4m3(x)
    assert q.dtype == torch.float8_e4m3fn and sf.dtype == torch.uint8 and sf.shape == (1, 1)
    error = (quant.dequantize_e4m3(q, sf) - x.double()).abs()
    scale = quant.decode_ue8m0(sf)
    # Half of a 2^-3 relative step for normal codes, half of 2^-9 for subnormal ones.
    assert bool((error <= torch.maximum(x.double().abs() * 2.0**-4, scale * 2.0**-10)).all())
    assert float(x.abs().max()) == 0 or int(sf) <= 1 or float(q.double().abs().max()) > 223


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=32, max_size=32))
@settings(max_examples=80)
def test_quantize_e2m1_error_is_half_a_step(values):
    w = torch.tensor([values], dtype=torch.float32)
    packed, sf = quant.quantize_e2m1(w)
    assert packed.shape == (1, 16) and packed.dtype == torch.uint8
    back = quant.dequantize_e2m1(packed, sf)
    scale = quant.decode_ue8m0(sf)
    assert bool(((back - w.double()).abs() <= torch.maximum(w.double().abs() * 0.25, scale * 0.25) * (1 + 1e-6)).all())


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_quantization_is_idempotent(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 96, generator=generator) * 2.0 ** float(torch.randint(-20, 20, (1,), generator=generator))
    q, sf = quant.quantize_e4m3(x)
    again = quant.dequantize_e4m3(q, sf)
    assert torch.equal(quant.dequantize_e4m3(*quant.quantize_e4m3(again)), again)
    w = quant.dequantize_e2m1(*quant.quantize_e2m1(x))
    assert torch.equal(quant.dequantize_e2m1(*quant.quantize_e2m1(w)), w)


def test_zero_block_and_tiny_block():
    x = torch.zeros(1, 64)
    x[0, 40] = 2.0**-149
    q, sf = quant.quantize_e4m3(x)
    assert sf.tolist() == [[0, 0]] and not q.view(torch.uint8).any()
    assert float(quant.inverse_scale(sf)[0, 0]) == 2.0**127


def test_pack_order_and_round_trip():
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 1)
    packed = quant.pack_e2m1(codes)
    assert packed[0, 0] == 0x10 and packed[0, 7] == 0xFE
    assert torch.equal(quant.unpack_e2m1(packed), codes)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: quant.quantize_e4m3(torch.zeros(2, 33)), r"x.shape\[-1\] = 33: must be a multiple of 32"),
        (lambda: quant.quantize_e4m3(torch.full((1, 32), math.nan)), "x = 'NaN or an infinity': must be finite"),
        (lambda: quant.quantize_e4m3(torch.zeros(1, 32, dtype=torch.int32)), r"x\.dtype = torch.int32: must be a floating"),
        (lambda: quant.quantize_e2m1(torch.zeros(1, 32, dtype=torch.int32)), r"w\.dtype = torch.int32: must be a floating"),
        (lambda: quant.quantize_e4m3(None), "x = None: must be a tensor"),
        (lambda: quant.quantize_e2m1(torch.tensor(1.0)), r"w\.shape = \(\): must be \[\.\.\., K\]"),
        (lambda: quant.quantize_weight_e4m3(torch.ones(128)), r"w\.shape = \(128,\): must be \[\.\.\., rows, K\]"),
        (lambda: quant.nvfp4_factor([1.0]), r"x = \[1.0\]: must be a tensor"),
        (lambda: quant.quantize_nvfp4(torch.zeros(1, 32).int(), torch.ones(())), r"x\.dtype = torch.int32"),
        (lambda: quant.encode_e4m3(torch.zeros(1, dtype=torch.float64)), r"x\.dtype = torch.float64"),
        (lambda: quant.encode_e2m1(torch.tensor([math.nan])), "x = 'NaN'"),
        (lambda: quant.encode_ue8m0(torch.tensor([-1.0])), "scale = 'a negative value'"),
        (lambda: quant.decode_ue8m0(torch.tensor([255], dtype=torch.uint8)), "code = 255"),
        (lambda: quant.pack_e2m1(torch.tensor([16, 0], dtype=torch.uint8)), "code = 16: must be at most 15"),
        (
            lambda: quant.dequantize_e4m3(torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8)),
            r"sf.shape = \(2, 1\): must be \(2, 2\)",
        ),
        (lambda: quant.quantize_e4m3(torch.zeros(2, 32), 0), r"x.shape\[-1\] = 32: must be a multiple of 0"),
        (lambda: quant.encode_ue8m0(torch.zeros(1, dtype=torch.float64)), r"scale.dtype = torch.float64: must be torch.float32"),
        (lambda: quant.encode_ue8m0(torch.tensor([1.0, math.inf])), "scale = 'NaN or an infinity'"),
        (lambda: quant.e2m1_scale_byte(torch.zeros(1, dtype=torch.float64)), r"amax.dtype = torch.float64: must be torch.float32"),
        (lambda: quant.decode_ue8m0(torch.zeros(1)), r"code.dtype = torch.float32: must be torch.uint8"),
        (lambda: quant.decode_e4m3(torch.zeros(1)), r"code.dtype = torch.float32: must be torch.float8_e4m3fn or torch.uint8"),
        (lambda: quant.encode_e2m1(torch.zeros(1).half()), r"x.dtype = torch.float16: must be torch.float32 or torch.float64"),
        (lambda: quant.pack_e2m1(torch.zeros(2, dtype=torch.int32)), r"code.dtype = torch.int32: must be torch.uint8"),
        (lambda: quant.pack_e2m1(torch.zeros(3, dtype=torch.uint8)), r"code.shape\[-1\] = 3: must be a multiple of 2"),
        (lambda: quant.unpack_e2m1(torch.zeros(2, dtype=torch.int8)), r"packed.dtype = torch.int8: must be torch.uint8"),
        (
            lambda: quant.dequantize_e4m3(torch.zeros(48, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)),
            r"x.shape\[-1\] = 48: must be a multiple of 32",
        ),
        (
            lambda: quant.dequantize_e4m3(torch.zeros(32, dtype=torch.uint8), torch.zeros(1)),
            r"sf.dtype = torch.float32: must be torch.uint8 or torch.float8_e8m0fnu",
        ),
        (
            lambda: quant.dequantize_e2m1(torch.zeros(24, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)),
            r"packed.shape\[-1\] = 48: must be a multiple of 32",
        ),
        (
            lambda: quant.dequantize_e2m1(torch.zeros(16, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)),
            r"sf.shape = \(2,\): must be \(1,\)",
        ),
    ],
)
def test_errors_name_field_value_and_allowed(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("quantize", [quant.quantize_e4m3, quant.quantize_e2m1])
def test_what_is_not_looked_for_stays_in_its_block(quantize):
    """And a tensor in BF16 is quantized as the FP32 numbers that it has."""
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(3)).bfloat16()
    spoilt = x.clone()
    spoilt[1, 40] = math.inf
    (want, want_sf), (found, found_sf) = quantize(x.float()), quantize(spoilt, check=False)
    assert [one.equal(other) for one, other in zip(quantize(x), (want, want_sf), strict=True)] == [True, True]
    same = torch.tensor([[True, True, True], [True, False, True]])
    assert torch.equal(found_sf == want_sf, same)
    codes = (one.view(torch.uint8).unflatten(1, (3, -1)) for one in (found, want))
    assert torch.equal(torch.eq(*codes).all(dim=2) | ~same, torch.ones_like(same))


def test_no_format_is_looked_at_unless_asked():
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(4)).bfloat16()
    x[1, 200] = math.nan
    for recipe in ("fp8xfp8", "fp8xfp4", "mxf4xmxf4"):
        form = RECIPES[recipe].activations
        spoilt, alone = quant.quantize(x, form, check=False), quant.quantize(x[:1], form)
        assert all(torch.equal(one[:1].view(torch.uint8), other.view(torch.uint8)) for one, other in zip(spoilt, alone, strict=True))
        with pytest.raises(ValueError, match="must be finite"):
            quant.quantize(x, form)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8, torch.bfloat16, torch.float16])
def test_every_code_that_is_no_number(dtype):
    """A byte is a UE8M0 scale, whose only NaN is 255."""
    codes = torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int32).to(torch.uint8 if dtype.itemsize == 1 else torch.int16)
    values = codes.view(dtype)
    finite = values.view(torch.float8_e8m0fnu) if dtype == torch.uint8 else values
    assert torch.equal(quant.not_finite(values), ~finite.float().isfinite())

"""The arithmetic of wgmma: against bits recorded on an H200, the rule written a second time in torch, and by hand."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from megamoe_dsl import reference
from megamoe_dsl.sim import formats
from megamoe_dsl.sim.umma import aligned_multiply_accumulate, alignment_of, decode_operand

DATA = Path(__file__).parents[1] / "reference" / "data"
SILICON, SUMS = DATA / "wgmma_h200.json", DATA / "wgmma_sums_h200.json"
FP8, BF16 = alignment_of("e4m3", "e4m3"), alignment_of("bf16", "bf16")


def chained(a, b):
    """Instructions of K = 32 from zero; a and b hold E4M3 codes."""
    total = None
    for k in range(0, a.shape[1], 32):
        total = aligned_multiply_accumulate(formats.E4M3[a[:, k : k + 32]], formats.E4M3[b[:, k : k + 32]], total, FP8)
    return total


@pytest.mark.parametrize("name", ["all codes", "below 2^-2"])
def test_bits_recorded_on_silicon(name):
    data = json.loads(SILICON.read_text())[name]
    a, b = (np.frombuffer(base64.b64decode(data[key]), np.uint8).reshape(-1, 128) for key in ("a", "b"))
    want = np.array(data["d"], np.float32)
    np.testing.assert_array_equal(chained(a, b).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("name", ["bf16", "f16", "tf32", "e4m3", "e5m2"])
def test_single_instructions_recorded_on_silicon(name):
    """Normal numbers, exponents far apart, sums that cancel, zeros, subnormal operands and accumulators, infinities and NaNs."""
    data = {key: base64.b64decode(text) for key, text in json.loads(SUMS.read_text())[name].items()}
    a, b = (np.frombuffer(data[key], np.uint8).reshape(-1, 8, 32) for key in ("a", "b"))
    c, *recorded = (np.frombuffer(data[key], np.float32).reshape(-1, 8, 8) for key in ("c", "from_zero", "accumulated"))
    for case, want in enumerate(zip(*recorded, strict=True)):
        rows, columns = (decode_operand(codes[case], name) for codes in (a, b))
        for accumulator, one in zip((None, c[case]), want, strict=True):
            with np.errstate(all="ignore"):
                found = aligned_multiply_accumulate(rows, columns, accumulator, alignment_of(name, name))
            same = found.view(np.uint32) == one.view(np.uint32)
            assert (same | np.isnan(found) & np.isnan(one)).all()


@pytest.mark.parametrize("scale", [1, 2.0**-10])
def test_bf16_equals_the_reference(scale):
    rng = np.random.default_rng(7)
    values = rng.standard_normal((24, 64)) * np.where(rng.random((24, 64)) < 0.1, 0, np.exp2(np.round(3 * rng.standard_normal((24, 64)))))
    a, b = torch.tensor(values * scale).bfloat16().split([16, 8])
    total = None
    for k in range(0, 64, 16):
        total = aligned_multiply_accumulate(a[:, k : k + 16].double().numpy(), b[:, k : k + 16].double().numpy(), total, BF16)
    np.testing.assert_array_equal(total, reference.hopper_dot(a, b).numpy())
    assert (total != (a.double() @ b.double().T).float().numpy()).mean() > 0.3  # the cut shows


def codes_of(kind, rows, rng):
    if kind == "uniform codes":
        return rng.integers(0, 127, (rows, 256)).astype(np.uint8) | rng.integers(0, 2, (rows, 256)).astype(np.uint8) << 7
    if kind == "subnormals and zeros":
        return rng.integers(0, 10, (rows, 256)).astype(np.uint8)
    values = rng.standard_normal((rows, 256)) * np.exp2(3 * rng.standard_normal((rows, 256)) if kind == "heavy tails" else 4)
    codes = torch.tensor(values).clamp(-448, 448).float().to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return np.where(rng.random((rows, 256)) < 0.3, 0, codes).astype(np.uint8)


@pytest.mark.parametrize("kind", ["uniform codes", "subnormals and zeros", "normal", "heavy tails"])
@pytest.mark.parametrize("n", [8, 96, 128])
def test_equals_the_reference(kind, n):
    rng = np.random.default_rng(n)
    a, b = codes_of(kind, 16, rng), codes_of(kind, n, rng)
    left, right = (torch.tensor(one).view(torch.float8_e4m3fn) for one in (a, b))
    np.testing.assert_array_equal(chained(a, b), reference.hopper_dot(left, right).numpy())


def one(products, accumulator=None):
    a, b = np.zeros((1, 32)), np.zeros((1, 32))
    for k, (left, right) in enumerate(products):
        a[0, k], b[0, k] = left, right
    total = None if accumulator is None else np.full((1, 1), accumulator, np.float32)
    return float(aligned_multiply_accumulate(a, b, total, FP8)[0, 0])


def test_cuts_by_hand():
    assert one([(256, 16), (0.5, 1)]) == 4096.5  # 13 bits below 2^12
    assert one([(256, 16), (0.4375, 1)]) == one([(256, 16), (-0.4375, 1)]) == 4096
    assert one([(256, 16)], 0.4375) == 4096 and one([(0.4375, 1)], 4096) == 4096
    assert one([(0.4375, 1), (0.4375, 1)], 4096) == 4096  # each of them is cut, not their sum
    assert one([(448, 0)], 2.0**-18) == 2.0**-18  # a zero aligns nothing
    assert one([(1.875, 1.875), (2.0**-6, 2.0**-6)]) == 1.875**2 + 2.0**-12  # aligned to 0 + 0, although 3.5 is above 2


def test_any_accumulator_is_accepted():
    """Values that no FP8 sum reaches: nothing overflows on the way, special values stay what they are, and subnormal ones are aligned as
    the least normal one."""
    assert one([], 2.0**-140) == 0 and one([], 1.5 * 2.0**-139) == 2.0**-139
    for value in (2.0**-139, -(2.0**100), 1.5 * 2.0**127):
        assert one([], value) == one([(0, 1)], value) == value
    assert one([(1, 1)], 2.0**-140) == 1 and one([(1, 1)], 2.0**100) == 2.0**100
    assert one([(448, 448)], float("inf")) == float("inf")
    assert np.isnan(one([(1, float("nan"))])) and np.isnan(one([(1, 1)], float("nan")))
    assert np.copysign(1, one([(-(2.0**-9), 2.0**-9)], 0)) == -1 and np.copysign(1, one([(-1, 0)])) == 1

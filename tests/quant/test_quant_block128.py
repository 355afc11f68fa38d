"""fp8xfp8: casts with FP32 and power-of-two scales against scalar arithmetic, and the weight order of the SM90 kernel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl import quant
from megamoe_dsl.arch import SM90
from megamoe_dsl.problem import Problem

torch.set_num_threads(1)
F32 = np.float32


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def e4m3_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


def test_fp32_scales_step_by_step():
    x = draw(5, 384) * torch.tensor([1e-6, 1e-3, 1.0, 30.0, 1e20])[:, None]
    codes, sf = quant.quantize_e4m3_f32(x)
    assert codes.dtype == torch.float8_e4m3fn and sf.dtype == torch.float32 and sf.shape == (5, 3)
    for row in range(5):
        for block in range(3):
            part = x[row, 128 * block : 128 * block + 128].numpy()
            scale = F32(max(np.abs(part).max(), F32(1e-4)) / F32(448))
            assert sf[row, block].item() == scale
            scaled = torch.from_numpy(part * F32(F32(1) / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
            assert torch.equal(e4m3_bytes(codes[row, 128 * block : 128 * block + 128]), e4m3_bytes(scaled))
    # A block below 1e-4 keeps the scale of 1e-4; the largest magnitude of the others has the largest code.
    assert float(codes[1:].double().abs().amax(1).min()) == 448 and float(codes[0].double().abs().max()) < 32


@given(st.integers(0, 2**32 - 1), st.integers(-30, 30))
@settings(max_examples=60)
def test_both_row_quantizers_are_half_a_step_off_at_most(seed, exponent):
    x = draw(2, 256, seed=seed) * 2.0**exponent
    for codes, sf in (quant.quantize_e4m3_f32(x), quant.quantize_e4m3_pow2(x)):
        error = (quant.dequantize_e4m3_f32(codes, sf) - x.double()).abs()
        step = torch.maximum(x.double().abs() * 2.0**-4, sf.double().repeat_interleave(128, dim=1) * 2.0**-10)
        assert bool((error <= step * (1 + 1e-6)).all())


def test_power_of_two_scale_is_the_ue8m0_rule_over_128_channels():
    x = draw(40, 256) * torch.exp2(torch.arange(-130, 110, 6).float())[:, None]
    codes, sf = quant.quantize_e4m3_pow2(x)
    plain, byte = quant.quantize_e4m3(x, 128)
    assert torch.equal(e4m3_bytes(codes), e4m3_bytes(plain))
    assert torch.equal(sf.view(torch.int32), byte.int() << 23)
    zero, scale = quant.quantize_e4m3_pow2(torch.zeros(1, 128))
    assert not e4m3_bytes(zero).any() and scale.item() == 0.0
    top = torch.full((1, 128), 448.0)
    assert quant.quantize_e4m3_pow2(top)[1].item() == 1 and quant.quantize_e4m3_pow2(top * 1.01)[1].item() == 2


def test_weight_blocks_are_independent_rows_of_128():
    w = draw(2, 256, 384) * torch.exp2(draw(2, 2, 3, seed=1) * 4).repeat_interleave(128, 1).repeat_interleave(128, 2)
    codes, sf = quant.quantize_weight_e4m3(w)
    assert codes.shape == w.shape and sf.shape == (2, 2, 3) and sf.is_contiguous() and codes.is_contiguous()
    back = quant.dequantize_weight_e4m3(codes, sf)
    for expert, row, column in np.ndindex(2, 2, 3):
        block = w[expert, 128 * row : 128 * row + 128, 128 * column : 128 * column + 128]
        flat, scale = quant.quantize_e4m3_f32(block.reshape(1, -1), 128 * 128)
        assert scale.item() == sf[expert, row, column].item()
        got = codes[expert, 128 * row : 128 * row + 128, 128 * column : 128 * column + 128]
        assert torch.equal(e4m3_bytes(got.contiguous()).flatten(), e4m3_bytes(flat).flatten())
        assert float((back[expert, 128 * row + 5, 128 * column + 7] - block[5, 7]).abs()) <= float(block.abs().max()) * 2.0**-4


def test_sm90_row_order_names_every_row():
    rows = quant.order_rows_sm90(torch.arange(1024).reshape(1, 1024, 1)).flatten()
    for index in range(1024):
        tile, place = divmod(index, 256)
        group, block, warp, half, row = place // 128, place // 64 % 2, place // 16 % 4, place // 8 % 2, place % 8
        assert rows[index] == 512 * half + 128 * tile + 16 * (4 * group + warp) + 2 * row + block
    assert quant.order_rows_sm90(rows.reshape(1, 1024, 1), inverse=True).flatten().tolist() == list(range(1024))
    for inverse in (False, True):
        with pytest.raises(ValueError, match=r"w.shape\[-2\] = 128: must be a multiple of 256"):
            quant.order_rows_sm90(torch.zeros(1, 128, 4), inverse)


PROBLEM = Problem(512, 256, 2, 1, recipe="fp8xfp8")


def checkpoint() -> dict[str, torch.Tensor]:
    fc1, fc1_sf = quant.quantize_weight_e4m3(draw(2, 512, 512, seed=1))
    fc2, fc2_sf = quant.quantize_weight_e4m3(draw(2, 512, 256, seed=2))
    return {"fc1": fc1, "fc1_sf": fc1_sf, "fc2": fc2, "fc2_sf": fc2_sf}


def test_transform_and_inverse():
    plain = checkpoint()
    moved = quant.transform_weights(PROBLEM, SM90, quant.ExpertWeights(**plain))
    assert torch.equal(moved.fc1_sf, plain["fc1_sf"]) and torch.equal(moved.fc2_sf, plain["fc2_sf"])
    back = quant.inverse_transform_weights(PROBLEM, SM90, moved)
    for name, tensor in plain.items():
        assert torch.equal(getattr(back, name).view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: quant.weight_scale_rows(torch.zeros(3, 1), 384, 2), r"sf.shape\[-2\] = 3: must be 4 for 384 rows"),
        (lambda: quant.quantize_e4m3_f32(torch.full((1, 128), np.inf)), "x = 'NaN or an infinity': must be finite"),
        (
            lambda: quant.quantize_e4m3_pow2(torch.zeros(1, 128, dtype=torch.int32)),
            r"x.dtype = torch.int32: must be a floating",
        ),
        (lambda: quant.quantize_weight_e4m3(torch.zeros(1, 64, 128, dtype=torch.int32)), r"w.dtype = torch.int32"),
        (
            lambda: quant.dequantize_e4m3_f32(torch.zeros(2, 256).to(torch.float8_e4m3fn), torch.zeros(2, 1)),
            r"sf.shape = \(2, 1\): must be \(2, 2\)",
        ),
        (
            lambda: quant.transform_weights(PROBLEM, SM90, quant.ExpertWeights(**checkpoint() | {"fc2_sf": torch.zeros(2, 512, 2)})),
            r"fc2_sf.shape = \(2, 512, 2\): must be \(2, 4, 2\)",
        ),
        (
            lambda: quant.transform_weights(PROBLEM, SM90, quant.ExpertWeights(**checkpoint() | {"fc1": torch.zeros(2, 512, 512)})),
            r"fc1.dtype = torch.float32: must be torch.float8_e4m3fn",
        ),
    ],
)
def test_errors_name_field_value_and_allowed(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("quantize", [quant.quantize_e4m3_f32, quant.quantize_e4m3_pow2])
def test_what_is_not_looked_for_stays_in_its_block(quantize):
    x = draw(2, 256)
    spoilt = x.clone()
    spoilt[1, 130] = np.nan
    (want, want_sf), (found, found_sf) = quantize(x), quantize(spoilt, check=False)
    assert torch.equal(e4m3_bytes(found)[:, :128], e4m3_bytes(want)[:, :128]) and torch.equal(e4m3_bytes(found)[0], e4m3_bytes(want)[0])
    assert torch.equal(found_sf[:, 0], want_sf[:, 0]) and found[1, 130].float().isnan()


@pytest.mark.parametrize("quantize", [quant.quantize_e4m3_f32, quant.quantize_e4m3_pow2])
def test_a_last_block_of_fewer_values_is_one_with_zeros(quantize):
    x = torch.randn(3, 320, generator=torch.Generator().manual_seed(0))
    codes, sf = quantize(x)
    filled, filled_sf = quantize(torch.nn.functional.pad(x, (0, 64)))
    assert torch.equal(codes.view(torch.uint8), filled.view(torch.uint8)[:, :320]) and torch.equal(sf, filled_sf)
    assert codes.is_contiguous() and sf.shape == (3, 3)
    assert torch.equal(quant.dequantize_e4m3_f32(codes, sf), quant.dequantize_e4m3_f32(filled, filled_sf)[:, :320])


def test_weights_whose_last_blocks_are_smaller():
    """Two matrices below one another, each with blocks of its own."""
    gate, up = torch.randn(2, 192, 320, generator=torch.Generator().manual_seed(0))
    pairs = [quant.quantize_weight_e4m3(one) for one in (gate, up)]
    assert all(one.is_contiguous() for pair in pairs for one in pair)
    codes, sf = (torch.cat(both) for both in zip(*((one.view(torch.uint8), scale) for one, scale in pairs), strict=True))
    assert sf.shape == (4, 3)
    whole = quant.dequantize_weight_e4m3(codes.view(torch.float8_e4m3fn), sf, parts=2)
    assert torch.equal(quant.dequantize(codes.view(torch.float8_e4m3fn), sf, 2), whole)
    for found, one in zip(whole.chunk(2), (gate, up), strict=True):
        filled = quant.quantize_weight_e4m3(torch.nn.functional.pad(one, (0, 64, 0, 64)))
        assert torch.equal(found, quant.dequantize_weight_e4m3(*filled)[:192, :320])


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("each", [1, 100, 128, 200])
def test_blocks_of_rows_that_are_not_full(parts: int, each: int) -> None:
    """Each of the matrices below one another ends with its own last block."""
    whole = [quant.quantize_weight_e4m3(draw(each, 256, seed=part)) for part in range(parts)]
    codes, scales = (torch.cat(one) for one in zip(*whole, strict=True))
    expected = torch.cat([quant.dequantize_weight_e4m3(*one) for one in whole])
    found = quant.dequantize_weight_e4m3(codes, scales, parts)
    assert found.shape == (parts * each, 256) and torch.equal(found, expected)
    per_row = torch.cat([sf[torch.arange(each) // 128] for _, sf in whole])
    assert torch.equal(quant.weight_scale_rows(scales, parts * each, parts), per_row)

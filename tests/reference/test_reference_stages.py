"""Stages against scalar float32 arithmetic written out step by step."""

import numpy as np
import pytest
import torch

from megamoe_dsl import quant, reference

torch.set_num_threads(1)
F32 = np.float32


def bf16(x: float) -> np.float32:
    """Round a float32 to BF16, ties to even, by its bits."""
    bits = int(F32(x).view(np.uint32))
    return np.array((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000, dtype=np.uint32).view(F32)[()]


def test_scaled_matmul_by_hand():
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 40] = 3.0, -2.0
    w = torch.zeros(2, 64, dtype=torch.uint8)
    w[0, 0], w[0, 40], w[1, 40] = 3, 7, 9  # 1.5, 6, -0.5
    x_sf, w_sf = torch.tensor([[127, 130]], dtype=torch.uint8), torch.tensor([[126, 127], [127, 128]], dtype=torch.uint8)
    got = reference.scaled_matmul(quant.encode_e4m3(x), x_sf, quant.pack_e2m1(w), w_sf)
    assert got.dtype == torch.float32 and got.tolist() == [[3 * 1.5 / 2 - 2 * 8 * 6, 2 * 8 * 0.5 * 2]]
    with pytest.raises(ValueError, match="x: K = 64, allowed: 32, the K of w"):
        reference.scaled_matmul(quant.encode_e4m3(x), x_sf, torch.zeros(2, 16, dtype=torch.uint8), w_sf[:, :1])


def test_requantize_scales_per_32_channels():
    values = torch.ones(1, 64)
    values[0, 32:] = 1000.0
    codes, sf = reference.requantize(values)
    assert sf.tolist() == [[127 - 8, 127 + 2]]
    assert codes.double().tolist() == [[256.0] * 32 + [256.0] * 32]  # 1000 / 4 = 250 rounds to 256


def test_linear2_rounds_to_bf16():
    x, x_sf = quant.quantize_e4m3(torch.tensor([[257.0] + [0.0] * 31]))
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    codes[0, 0] = 2
    out = reference.linear2(x, x_sf, quant.pack_e2m1(codes), torch.tensor([[127]], dtype=torch.uint8))
    assert out.dtype == torch.bfloat16 and out.item() == 256


def test_results_travel_as_they_are_or_in_codes_of_128_channels():
    """The scale is the smallest power of two that leaves amax at most 448; values between codes go to the even one."""
    out = torch.zeros(1, 256).bfloat16()
    out[0, 0], out[0, 1], out[0, 2], out[0, 3] = 1000.0, -17.0, 19.0, 2.0**-8  # a scale of 4: 250, -4.25, 4.75, 2^-10
    out[0, 128], out[0, 129] = 448.0, 2.0**-10  # a scale of 1: the tie between zero and the smallest code is zero
    assert reference.travel(out) is out
    sent = reference.travel(out, "e4m3")
    assert sent.dtype == torch.float32
    assert sent[0, :4].tolist() == [1024.0, -16.0, 20.0, 0.0] and sent[0, 128:130].tolist() == [448.0, 0.0]
    assert not sent[0, 4:128].any() and not sent[0, 130:].any()
    assert reference.travel(torch.full((1, 128), 449.0).bfloat16(), "e4m3")[0, 0] == 448.0
    assert reference.travel(torch.full((1, 128), 450.0).bfloat16(), "e4m3")[0, 0] == 448.0


def test_combine_adds_in_slot_order_and_skips_masks():
    big = 2.0**24
    outputs = torch.tensor([[[big]], [[1.0]], [[-big]], [[float("nan")]]]).bfloat16()
    assert reference.combine(outputs, torch.tensor([[0, 1, 2, -1]])).item() == 0
    assert reference.combine(outputs[[0, 2, 1, 3]], torch.tensor([[0, 2, 1, -1]])).item() == 1
    empty = reference.combine(outputs, torch.tensor([[-1, -1, -1, -1]]))
    assert empty.dtype == torch.bfloat16 and empty.item() == 0
    assert reference.combine(torch.zeros(2, 0, 8).bfloat16(), torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 8)
    with pytest.raises(ValueError, match=r"topk_idx: shape \(1, 3\)"):
        reference.combine(outputs, torch.tensor([[0, 1, 2]]))


def test_combine_rounds_once():
    # 1 + 2^-8 is a tie that BF16 drops; adding 2^-9 first in FP32 keeps it.
    outputs = torch.tensor([[[1.0]], [[2.0**-8]], [[2.0**-9]]]).bfloat16()
    assert reference.combine(outputs, torch.tensor([[0, 1, 2]])).item() == 1 + 2.0**-7

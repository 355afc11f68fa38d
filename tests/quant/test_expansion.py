"""E2M1 to E4M3: every value the same, or refused."""

from __future__ import annotations

import pytest
import torch

from megamoe_dsl.quant import dequantize_e2m1, dequantize_weight_e4m3, expand_e2m1, pack_e2m1


def weights(codes: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if codes is None:
        codes = torch.randint(0, 16, (2, 128, 256), generator=generator, dtype=torch.uint8)
    return pack_e2m1(codes), torch.full((*codes.shape[:-1], codes.shape[-1] // 32), 120, dtype=torch.uint8)


@pytest.mark.parametrize("low", [0, 1, 100, 240])
def test_fifteen_neighboring_scales_are_exact(low: int) -> None:
    packed, sf = weights()
    sf = torch.randint(low, low + 15, sf.shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    found, scales = expand_e2m1(packed, sf)
    assert found.dtype == torch.float8_e4m3fn and scales.shape == (2, 1, 2) and scales.dtype == torch.float32
    assert torch.equal(dequantize_weight_e4m3(found, scales), dequantize_e2m1(packed, sf))
    assert torch.equal(torch.frexp(scales)[0], torch.full_like(scales, 0.5))


@pytest.mark.parametrize(("value", "room"), [(1, 14), (2, 15), (3, 14), (4, 16), (5, 15), (6, 17), (7, 16)])
def test_the_room_below_the_largest_scale(value: int, room: int) -> None:
    """0.5 and 1.5 need 2^-1, 1 and 3 need 1, and so on: E4M3 ends at 2^-9."""
    codes = torch.full((1, 128, 128), value, dtype=torch.uint8)
    packed, sf = weights(codes)
    for far in (room, room + 1):
        sf[0, 5, 2] = 120 - far
        if far == room:
            found, scales = expand_e2m1(packed, sf)
            assert torch.equal(dequantize_weight_e4m3(found, scales), dequantize_e2m1(packed, sf))
        else:
            with pytest.raises(ValueError, match=rf"sf\[0, 5, 2\] = '2\^{-7 - far} beside 2\^-7 in block \[0, 0, 0\].*1 of 512 blocks"):
                expand_e2m1(packed, sf)


def test_scales_of_zeros_do_not_count() -> None:
    codes = torch.full((1, 128, 128), 7, dtype=torch.uint8)
    codes[:, 3, 32:64] = 8  # minus zero
    packed, sf = weights(codes)
    for byte in (0, 254):
        sf[0, 3, 1] = byte
        found, scales = expand_e2m1(packed, sf)
        assert torch.equal(dequantize_weight_e4m3(found, scales), dequantize_e2m1(packed, sf))
    nothing, ones = expand_e2m1(*weights(torch.zeros(1, 128, 128, dtype=torch.uint8)))
    assert not nothing.float().any() and ones.item() == 1.0


def test_the_smallest_scales() -> None:
    """2^-127 and its neighbors: the scale of the block stays a normal FP32 number."""
    codes = torch.full((1, 128, 128), 2, dtype=torch.uint8)
    packed, sf = weights(codes)
    sf.fill_(0)
    found, scales = expand_e2m1(packed, sf)
    assert scales.item() == 2.0**-126 and torch.equal(dequantize_weight_e4m3(found, scales), dequantize_e2m1(packed, sf))


def test_bad_input() -> None:
    packed, sf = weights()
    sf[1, 2, 3] = 255
    with pytest.raises(ValueError, match="sf = 255"):
        expand_e2m1(packed, sf)
    with pytest.raises(ValueError, match="must be a multiple of 32"):
        expand_e2m1(packed[..., :10], sf[..., :1])
    with pytest.raises(ValueError, match=r"sf.shape"):
        expand_e2m1(packed, sf[..., :1])

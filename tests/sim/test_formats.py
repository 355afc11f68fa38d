"""Decode tables against torch's own casts, and the corners of the formats torch does not have."""

import numpy as np
import pytest
import torch

from megamoe_dsl.sim import formats


@pytest.mark.parametrize(("table", "dtype"), [(formats.E4M3, torch.float8_e4m3fn), (formats.E5M2, torch.float8_e5m2)])
def test_fp8_tables_equal_torch(table, dtype):
    expected = torch.arange(256, dtype=torch.uint8).view(dtype).double().numpy()
    np.testing.assert_array_equal(table, expected)


def test_ue8m0_equals_torch():
    expected = torch.arange(1, 256, dtype=torch.uint8).view(torch.float8_e8m0fnu).double().numpy()
    np.testing.assert_array_equal(formats.UE8M0[1:], expected)
    assert formats.UE8M0[0] == 2.0**-127


def test_e2m1_values():
    assert formats.E2M1[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert formats.E2M1[8:].tolist() == [0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_fp6_and_ue4m3_corners():
    assert (formats.E2M3.max(), formats.E2M3[1]) == (7.5, 0.125)
    assert (formats.E3M2.max(), formats.E3M2[1]) == (28.0, 0.0625)
    assert (formats.UE4M3[0x7E], formats.UE4M3[0xFE]) == (448.0, 448.0)
    assert np.isnan(formats.UE4M3[0x7F])


def test_bf16_round_trip_and_rounding():
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = formats.bf16_to_f32(bits)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(formats.f32_to_bf16(values)[numbers], bits[numbers])
    assert set(formats.f32_to_bf16(values)[~numbers]) == {0x7FFF}
    random = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = torch.from_numpy(random).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(formats.f32_to_bf16(random), expected)

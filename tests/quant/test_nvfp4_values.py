"""NVFP4: bits of scales and codes, and how far values are from what was quantized."""

from __future__ import annotations

import pytest
import torch

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant import dequantize, dequantize_nvfp4, nvfp4_factor, pack_e2m1, quantize_nvfp4, unpack_e2m1


def test_values_are_within_half_a_step() -> None:
    """A scale moves by 2^-4 of itself, a code by a sixth of the largest, or half a step next to zero."""
    x = torch.randn(5, 7, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 2, 7)[:, None]
    factor = nvfp4_factor(x)
    codes, sf = quantize_nvfp4(x, factor)
    assert (codes.shape, codes.dtype, sf.shape, sf.dtype) == ((5, 7, 32), torch.uint8, (5, 7, 4), torch.float8_e4m3fn)
    found = dequantize_nvfp4(codes, sf) * factor.double()
    largest = x.unflatten(-1, (-1, 16)).abs().amax(-1).repeat_interleave(16, dim=-1).double()
    assert bool(((found - x.double()).abs() <= largest * (1 / 6 + 1 / 16)).all())
    assert float(sf.float().max()) == 448 and torch.equal(dequantize(codes, sf), dequantize_nvfp4(codes, sf))


def test_bits() -> None:
    """amax 6 and factor 1 give scale 1; ties go to even; minus zero keeps its sign; a block of zeros has scale 0 and codes 0."""
    block = torch.tensor([6.0, 0.25, 0.75, 2.5, -0.0, -6.0, 1.25, 5.0, *[0.0] * 8])
    codes, sf = quantize_nvfp4(torch.cat([block, torch.zeros(16)]), torch.tensor(1.0))
    assert sf.float().tolist() == [1.0, 0.0]
    assert unpack_e2m1(codes).tolist() == [7, 0, 2, 4, 8, 15, 2, 6, *[0] * 24]


def test_each_matrix_has_its_factor() -> None:
    x = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(1))
    factors = torch.stack([nvfp4_factor(one) for one in x])
    together = quantize_nvfp4(x, factors)
    for index, one in enumerate(x):
        codes, sf = quantize_nvfp4(one, factors[index])
        assert torch.equal(together[0][index], codes) and torch.equal(together[1][index].float(), sf.float())
    assert float(nvfp4_factor(torch.zeros(16))) == 1 == float(nvfp4_factor(torch.tensor([1.0, -448.0 * 6])))
    assert float(nvfp4_factor(torch.zeros(0, 16))) == 1


@pytest.mark.parametrize("factor", [0.0, -1.0, torch.nan, torch.inf])
def test_a_factor_is_a_positive_number(factor: float) -> None:
    """Of every matrix; without any there is none to check."""
    for given in (torch.tensor(factor), torch.tensor([1.0, factor])):
        with pytest.raises(ProblemError, match=rf"^factor = \[(1.0, )?{factor}\]: must be positive and finite"):
            quantize_nvfp4(torch.ones(2, 16), given)
    codes, sf = quantize_nvfp4(torch.zeros(0, 32), torch.zeros(0))
    assert (codes.shape, sf.shape) == ((0, 16), (0, 2))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="16"):
        quantize_nvfp4(torch.zeros(24), torch.tensor(1.0))
    with pytest.raises(ValueError, match="x"):
        quantize_nvfp4(torch.full((16,), torch.inf), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"sf.shape = \(2,\): must be \(1,\)"):
        dequantize_nvfp4(pack_e2m1(torch.zeros(16, dtype=torch.uint8)), torch.zeros(2).to(torch.float8_e4m3fn))

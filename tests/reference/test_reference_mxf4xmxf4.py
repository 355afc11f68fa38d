"""mxf4xmxf4 in the oracle: what is exact, what the bound covers, what its formats are."""

from dataclasses import replace

import pytest
import torch

from megamoe_dsl.cases import random_case
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import MICRO_SCALING, dequantize_e2m1
from megamoe_dsl.reference import requantize
from violations import violations

PROBLEM = Problem(512, 256, 4, 2, num_ranks=2, max_tokens_per_rank=16, recipe="mxf4xmxf4")


def test_exact_data_has_the_same_sums_in_any_precision():
    case = random_case(PROBLEM, (16, 7), 0, mask=0.1)
    result, rough = case.reference(), case.reference(torch.float32)
    for name in ("y", "acts", "acts_sf", "outputs"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(result, name), getattr(rough, name), strict=True))
    assert result.acts[0].shape == (16, 2, 128) and result.acts[0].dtype == torch.uint8
    assert len(torch.cat([y.flatten() for y in result.y]).unique()) > 1000


def test_half_a_step_is_what_the_table_says():
    """Between neighbors, and next to zero, for both elements."""
    for element, grid in (("e4m3", torch.linspace(2.0**-9, 400, 40000)), ("e2m1", torch.linspace(0.01, 6, 40000))):
        form = MICRO_SCALING[element]
        error = (form.rounded(grid) - grid.double()).abs()
        assert bool((error <= grid.double() * form.relative + form.smallest).all())
        assert bool((error > grid.double() * form.relative * 0.45).any())


def test_bound_holds_for_moved_sums_and_not_for_a_wrong_code():
    """Inputs moved by less than FP32 accumulation may: inside. One token's first code exchanged: outside."""
    case = random_case(PROBLEM, (16, 7), 1, exact=False)
    reference, bound = case.reference().y, case.bound()
    assert [len(one) for one in violations(case.reference(torch.float32).y, reference, bound)] == [0, 0]
    wrong = [one.clone() for one in case.x]
    wrong[0][3] ^= 0x88  # every sign of a token
    y = replace(case, x=wrong).reference().y
    places = violations(y, reference, bound)
    assert len(places[0]) > 100 and set(places[0][:, 0].tolist()) == {3} and len(places[1]) == 0


def test_requantized_values_are_within_half_a_step():
    values = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)) * 3
    codes, sf = requantize(values, "mxf4xmxf4")
    assert codes.shape == (8, 128) and sf.shape == (8, 8)
    scale = torch.exp2(sf.double() - 127).repeat_interleave(32, 1)
    assert bool(((dequantize_e2m1(codes, sf) - values.double()).abs() <= scale).all())
    assert bool((values.abs().unflatten(1, (-1, 32)).amax(2) <= 6 * torch.exp2(sf.double() - 127)).all())


def test_tokens_of_another_recipe_are_refused():
    case = random_case(PROBLEM, (2, 2), 0, exact=False)
    other = random_case(replace(PROBLEM, recipe="fp8xfp4"), (2, 2), 0, exact=False)
    with pytest.raises(ProblemError, match=r"x\[0\] = 'torch.float8_e4m3fn \(2, 512\)': must be torch.uint8 \(2, 256\)"):
        replace(case, x=other.x).reference()

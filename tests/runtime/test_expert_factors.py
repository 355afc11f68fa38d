"""Factors of a layer in NVFP4: what they are made of, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant.expert_factors import expert_factors
from megamoe_dsl.recipe import ExpertFactors

W1, W2 = torch.tensor([0.5, 2.0, 3.0]), torch.tensor([1.0, 0.25, 5.0])


def test_sums_have_the_product_of_both_matrices_factors() -> None:
    """Tokens have the largest of the experts' factors; activated gate and up each expert's own, or one."""
    found = ExpertFactors(*expert_factors(torch.tensor([[0.1, 0.2], [0.3, 0.1], [0.2, 0.2]]), W1, torch.tensor([1.0, 2.0, 4.0]), W2))
    x = torch.tensor(0.3)
    assert torch.equal(found.x, x.expand(3)) and torch.equal(found.gate, x * W1) and torch.equal(found.up, x * W1)
    assert found.hidden.tolist() == [1, 2, 4] and found.fc2.tolist() == [1, 0.5, 20]
    one = ExpertFactors(*expert_factors(0.25, W1, 2.0, W2))
    apart = ExpertFactors(*expert_factors(0.25, torch.stack([W1, W2], dim=1), 2.0, W2))
    assert torch.equal(apart.gate, 0.25 * W1) and torch.equal(apart.up, 0.25 * W2)
    assert one.x.tolist() == [0.25] * 3 and one.hidden.tolist() == [2, 2, 2] and one.fc2.tolist() == [2, 0.5, 10]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_factors_of_any_type_become_float32(dtype: torch.dtype) -> None:
    whole = torch.tensor([1.0, 2.0, 4.0])
    found = expert_factors(2, whole.to(dtype), whole.to(dtype), whole.to(dtype))
    assert found.dtype == torch.float32 and torch.equal(found, torch.stack([whole * 0 + 2, 2 * whole, 2 * whole, whole, whole * whole]))


def test_the_smallest_and_the_largest_number_are_factors() -> None:
    ends = torch.tensor([2.0**-60, 2.0**60])
    assert torch.equal(expert_factors(1.0, ends, ends, ends)[1], ends)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w1": torch.ones(3, 2, 1)}, r"w1.shape = \(3, 2, 1\): must be \[num_experts\] or \[num_experts, 2\]"),
        ({"w1": torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])}, r"w1 of up = \[1.0, 0.0, 1.0\]: must be numbers"),
        ({"w1": torch.ones(0)}, r"w1 = \[\]: must be numbers"),
        ({"w2": torch.ones(2)}, r"w2.shape = \(2,\): must be \(3,\), as of w1"),
        ({"w2": 1.0}, r"w2.shape = \(\): must be \(3,\), as of w1"),
        ({"hidden": torch.ones(2)}, r"hidden.shape = \(2,\): must be \(3,\), as of w1"),
        ({"x": 0.0}, r"x = \[0.0\]: must be numbers between 2\^-60 and 2\^60"),
        ({"x": 2.0**-61}, r"x = \[4.336.*e-19\]: must be numbers between 2\^-60 and 2\^60"),
        ({"x": torch.ones(0)}, r"x = \[\]: must be numbers"),
        ({"hidden": torch.tensor([1.0, -1.0, 1.0])}, r"hidden = \[1.0, -1.0, 1.0\]: must be numbers"),
        ({"w1": torch.tensor([1.0, torch.nan, 1.0])}, r"w1 = \[1.0, nan, 1.0\]: must be numbers"),
        ({"w2": torch.tensor([1.0, torch.inf, 1.0])}, r"w2 = \[1.0, inf, 1.0\]: must be numbers"),
    ],
)
def test_what_is_no_factor_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        expert_factors(**{"x": 1.0, "w1": W1, "hidden": 1.0, "w2": W2, **changes})

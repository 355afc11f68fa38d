"""Shared experts as the kernels see them: numbers, routing, and what a layer with them computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.shared_experts import SharedExperts
from megamoe_dsl.testing import problems
from shared_routing import with_shared

ROUTED = Problem(hidden=256, intermediate=128, num_experts=6, topk=2, num_ranks=2, max_tokens_per_rank=8, recipe="fp8xfp8")


@given(problems(), st.integers(0, 3))
def test_every_expert_has_one_number_on_its_rank(routed: Problem, count: int) -> None:
    assume(routed.topk + count <= 32)
    shared = SharedExperts(routed, count)
    assert SharedExperts.within(shared.whole, count) == shared
    numbers = [shared.number_of(expert) for expert in range(routed.num_experts)]
    own = [shared.first_of(rank) + n for rank in range(routed.num_ranks) for n in range(count)]
    assert sorted(numbers + own) == list(range(shared.whole.num_experts))
    local = shared.whole.experts_per_rank
    assert [number // local for number in numbers] == [expert // routed.experts_per_rank for expert in range(routed.num_experts)]
    assert [number // local for number in own] == [rank for rank in range(routed.num_ranks) for _ in range(count)]


def test_routing_has_slots_of_the_ranks_own_shared_experts() -> None:
    shared = SharedExperts(ROUTED, 2)
    idx, weights = torch.tensor([[0, 5], [-1, 3], [6, 2]], dtype=torch.int32), torch.rand(3, 2)
    experts, all_weights = with_shared(shared, 1, idx, weights)
    assert experts.tolist() == [[0, 7, 8, 9], [-1, 5, 8, 9], [-1, 2, 8, 9]]
    assert torch.equal(all_weights, torch.cat([weights, torch.ones(3, 2)], dim=1))


def test_layer_is_the_routed_one_and_a_dense_one() -> None:
    """With one expert that all tokens of a rank take with weight 1; sums in another order, so within their rounding."""
    shared = SharedExperts(ROUTED, 1)
    case = random_case(shared.whole, (5, 3), 0, exact=False)
    given = random_case(ROUTED, (5, 3), 1, exact=False)
    routing = [with_shared(shared, rank, *one) for rank, one in enumerate(zip(given.topk_idx, given.topk_weights, strict=True))]
    y = replace(case, topk_idx=[one for one, _ in routing], topk_weights=[one for _, one in routing]).reference().y
    local = ROUTED.experts_per_rank
    others = [one.map(lambda tensor: tensor[:local]) for one in case.weights]
    routed = replace(case, problem=ROUTED, topk_idx=given.topk_idx, topk_weights=given.topk_weights, weights=others).reference().y
    for rank, tokens in enumerate((5, 3)):
        alone = replace(ROUTED, num_experts=1, topk=1, num_ranks=1)
        own = case.weights[rank].map(lambda tensor: tensor[local:])
        take, ones = torch.zeros(tokens, 1, dtype=torch.int64), torch.ones(tokens, 1)
        one = Case(alone, [case.x[rank]], [case.x_sf[rank]], [take], [ones], [own], exact=False)
        dense = one.reference().y
        total = routed[rank].float() + dense[0].float()
        assert torch.allclose(y[rank].float(), total, rtol=2**-6, atol=2**-6 * float(total.abs().max()))
        assert not torch.allclose(routed[rank].float(), total, rtol=2**-6, atol=2**-6 * float(total.abs().max()))


@pytest.mark.parametrize(
    ("count", "message"), [(-1, "an integer, 0 or more"), (1.5, "an integer, 0 or more"), (31, "topk = 33: must be at most 32")]
)
def test_a_bad_number_is_refused(count: object, message: str) -> None:
    with pytest.raises(ProblemError, match="shared_experts") as error:
        SharedExperts(ROUTED, count)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_pre_dispatch_leaves_a_routed_slot_and_expert() -> None:
    assert PreDispatchConfig(ROUTED, 2, "sm_90a", shared=1).shared_experts.routed == replace(ROUTED, num_experts=4, topk=1)
    with pytest.raises(ConfigError, match="shared = 2: must be between 0 and 1"):
        PreDispatchConfig(ROUTED, 2, "sm_90a", shared=2)

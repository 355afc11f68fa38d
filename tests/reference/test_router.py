"""Metadata of a router: every slot has one row, sorted by expert and by token."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.reference.router import (
    hashed_experts,
    replica_places,
    router_metadata,
    softplus_root,
    top_experts,
    top_experts_gradient,
    weighted_sum,
)


@given(st.integers(0, 40), st.integers(1, 10), st.sampled_from([1, 16, 128, 512]), st.integers(0, 1 << 20))
def test_slots_have_a_row_each(tokens: int, topk: int, experts: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    idx = torch.randint(-1, experts, (tokens, topk), generator=generator)
    found = router_metadata(idx, experts)
    assert found.counts.tolist() == [int((idx == expert).sum()) for expert in range(experts)]
    assert found.ends.tolist() == list(accumulate(found.counts.tolist()))
    rows = found.positions[idx >= 0]
    assert sorted(rows.tolist()) == list(range(int((idx >= 0).sum())))
    assert (found.positions[idx < 0] == -1).all()
    experts_of_rows = torch.repeat_interleave(torch.arange(experts), found.counts.long())
    for token in range(tokens):
        for slot in range(topk):
            row = int(found.positions[token, slot])
            assert row < 0 or (found.sources[row] == token and experts_of_rows[row] == idx[token, slot])
    assert all(bool((of_expert.diff() >= 0).all()) for of_expert in found.sources.split(found.counts.tolist()))


def test_an_expert_that_is_not_there_is_named() -> None:
    with pytest.raises(ProblemError, match="topk_idx = 8"):
        router_metadata(torch.tensor([[3, 8]]), 8)


def test_highest_logits_with_ties_by_number() -> None:
    idx, weights = top_experts(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3)
    assert idx.tolist() == [[1, 2, 3]]
    assert torch.allclose(weights, torch.tensor([[1.0, 1.0, torch.e**-1]]) / (2 + torch.e**-1))


def test_scores_of_deepseek_v4() -> None:
    logits = torch.linspace(-80, 80, 1001)
    expected = torch.nn.functional.softplus(logits.double(), threshold=100).sqrt()
    assert torch.allclose(softplus_root(logits).double(), expected, rtol=1e-6, atol=0)
    idx, weights = top_experts(torch.tensor([[1.0, 3.0, 2.0]]), 2, "sqrtsoftplus", bias=torch.tensor([9.0, 0.0, 0.0]), scale=1.5)
    chosen = torch.nn.functional.softplus(torch.tensor([[1.0, 3.0]])).sqrt()
    assert idx.tolist() == [[0, 1]] and torch.allclose(weights, 1.5 * chosen / chosen.sum())


def test_a_table_names_experts_and_another_their_places() -> None:
    table = torch.tensor([[0, 2], [1, -1], [7, 1]], dtype=torch.int32)
    given = hashed_experts(table, torch.tensor([2, 1, 0, 3]), 4)
    assert given.tolist() == [[-1, 1], [1, -1], [0, 2], [-1, -1]]
    replicas = torch.tensor([[8, 9, -1], [5, -1, -1], [-1, -1, -1], [6, 7, 3]], dtype=torch.int32)
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]]).expand(4, -1)
    idx, weights = top_experts(logits, 2, given=given, replicas=replicas, replica_shift=1)
    assert idx.tolist() == [[-1, 5], [5, -1], [9, -1], [-1, -1]]
    assert weights.tolist() == [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]
    assert replica_places(torch.tensor([[3], [3], [-1], [3], [0]]), replicas).tolist() == [[6], [7], [-1], [6], [8]]
    first = torch.tensor([[0, -1], [2, 0]])  # there is a place 0
    assert replica_places(torch.tensor([[0, 1], [0, 1]]), first).tolist() == [[0, 2], [0, 0]]


def test_rows_are_summed_by_token() -> None:
    idx = torch.tensor([[2, 0], [-1, 2]])
    found = router_metadata(idx, 3)
    rows = torch.tensor([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]], dtype=torch.bfloat16)  # expert 0 of token 0, expert 2 of tokens 0 and 1
    y = weighted_sum(rows, found.positions, torch.tensor([[0.5, 2.0], [9.0, 0.25]]))
    assert y.tolist() == [[4.0, 8.0], [4.0, 8.0]]


def test_scores_below_zero_are_chosen_of_the_groups_that_are_in() -> None:
    logits, bias = torch.tensor([[0.0, 0.0, -9.0, -9.0]]), torch.full((4,), -2.0)
    assert top_experts(logits, 2, "sigmoid", bias=bias, groups=2, topk_groups=1)[0].tolist() == [[0, 1]]


def test_what_nobody_asks_for_is_left_out() -> None:
    """One group, of several one, and a factor of 1."""
    logits = torch.tensor([[4.0, 0.0, 2.0, 1.0, 4.0, 0.0]])
    for fields, chosen in (({}, [0, 4]), ({"groups": 2}, [0, 2]), ({"groups": 3}, [0, 1])):
        idx, weights = top_experts(logits, 2, **fields)
        assert (idx.tolist(), weights.sum()) == ([chosen], 1.0)
    assert top_experts_gradient(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).tolist() == [[0.25, -0.25]]

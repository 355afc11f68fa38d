"""Routing, dispatch order and pool layout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl import reference
from megamoe_dsl.problem import Problem, ProblemError

torch.set_num_threads(1)

PROBLEM = Problem(hidden=256, intermediate=128, num_experts=4, topk=2, num_ranks=2, max_tokens_per_rank=8)


def test_route_groups_by_expert_in_token_order():
    idx = [torch.tensor([[0, 3], [3, -1], [2, 0]]), torch.tensor([[3, 0]])]
    routing = reference.route(PROBLEM, idx)
    assert routing.counts.tolist() == [[2, 1], [0, 0], [1, 0], [2, 1]]
    assert routing.slots[0][0].tolist() == [[0, 0], [2, 1]]
    assert routing.slots[3][0].tolist() == [[0, 1], [1, 0]]
    assert reference.expert_rows(routing, 0).tolist() == [[0, 0, 0], [1, 0, 1], [0, 2, 1]]
    assert reference.expert_rows(routing, 1).shape == (0, 3)


@pytest.mark.parametrize(
    ("idx", "match"),
    [
        ([[0, 1], [2, 4]], r"topk_idx of rank 1, token 1, slot 1 = 4: must be -1 \(masked\) or 0\.\.3"),
        ([[-2, 1]], r"topk_idx of rank 1, token 0, slot 0 = -2"),
        ([[0, 1], [3, 3]], r"topk_idx of rank 1, token 1, slot 1 = 3: must be an expert not named earlier in the row \(slot 0 has it\)"),
        ([[0, 1], [0, 0]], r"topk_idx of rank 1, token 1, slot 1 = 0: must be an expert not named earlier in the row \(slot 0 has it\)"),
        ([[0, 1, 2]], r"topk_idx\[1\].shape = \(1, 3\): must be \(tokens, 2\)"),
        ([[0, 1]] * 9, r"topk_idx\[1\].shape\[0\] = 9: must be between 0 and max_tokens_per_rank = 8"),
    ],
)
def test_route_errors_name_rank_token_slot_and_value(idx, match):
    with pytest.raises(ProblemError, match=match):
        reference.route(PROBLEM, [torch.zeros(0, 2, dtype=torch.int64), torch.tensor(idx)])


def test_route_accepts_repeated_masks_and_refuses_other_inputs():
    reference.route(PROBLEM, [torch.full((2, 2), -1), torch.zeros(0, 2, dtype=torch.int64)])
    with pytest.raises(ProblemError, match=r"len\(topk_idx\) = 1: must be num_ranks = 2"):
        reference.route(PROBLEM, [torch.zeros(0, 2, dtype=torch.int64)])
    with pytest.raises(ProblemError, match=r"topk_idx\[0\].dtype = torch.int16: must be torch.int64 or torch.int32"):
        reference.route(PROBLEM, [torch.zeros(0, 2, dtype=torch.int16)] * 2)


def test_dispatch_order_by_hand():
    # Counts 3, 1, 0, 2: one round over three ranks, one over two, then the rest of rank 0.
    assert reference.dispatch_order([3, 1, 0, 2]) == [(0, 0), (1, 0), (3, 0), (0, 1), (3, 1), (0, 2)]
    assert reference.dispatch_order([0, 0]) == []
    with pytest.raises(ValueError, match=r"counts: \[1, -1\]"):
        reference.dispatch_order([1, -1])


def article_lookup(counts: list[int], slot: int) -> tuple[int, int]:
    """Rank and index of one pool row as a warp finds it (article section 4.1.6.3), without building the list."""
    remaining, offset = list(counts), 0
    while True:
        active = [rank for rank, left in enumerate(remaining) if left > 0]
        length = min(remaining[rank] for rank in active)
        if slot < length * len(active):
            return active[slot % len(active)], offset + slot // len(active)
        slot -= length * len(active)
        offset += length
        remaining = [left - min(left, length) for left in remaining]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8))
@settings(max_examples=60)
def test_dispatch_order_properties(counts):
    order = reference.dispatch_order(counts)
    assert sorted(order) == [(rank, index) for rank, count in enumerate(counts) for index in range(count)]
    taken = [0] * len(counts)
    for rank, index in order:
        assert index == taken[rank]
        taken[rank] += 1
        unfinished = [t for t, count in zip(taken, counts, strict=True) if t < count]
        assert not unfinished or max(taken) - min(unfinished) <= 1
    assert order == [article_lookup(counts, slot) for slot in range(sum(counts))]

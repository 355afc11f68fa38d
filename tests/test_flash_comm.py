"""bench/flash_comm.py sends what our tables count."""

from __future__ import annotations

import torch

from flash_comm import sent_tokens
from megamoe_dsl.bench.point import Point
from megamoe_dsl.cases import random_inputs
from megamoe_dsl.runtime.ep.routing import RoutingTables


def test_a_token_is_sent_once_to_each_rank() -> None:
    point = Point("flash", 64, 2, 32, 0.875)
    problem = point.problem
    idx = random_inputs(problem, 0, 64, 1, mask=0.1, remote=0.875).topk_idx
    token, experts = sent_tokens(point, idx)
    tables = RoutingTables.of(problem, [idx, idx[:0]])
    assert len(token) == sum(int(one.recv_pairs[0]) for one in tables)
    there = experts < problem.num_experts
    assert int(there.sum()) == int((idx >= 0).sum()) > len(token)
    for one, of_token in zip(experts, token.tolist(), strict=True):
        own = one[one < problem.num_experts]
        assert len(own) and bool(torch.isin(own, idx[of_token]).all())
        assert len((own // problem.experts_per_rank).unique()) == 1

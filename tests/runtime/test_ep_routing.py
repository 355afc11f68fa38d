"""Routing tables of the expert-parallel kernels, against a plain enumeration of pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_routings import routings
from ep_traffic import Traffic
from group_limited import group_bias
from megamoe_dsl.cases.routing import draw_experts
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import ROW_BLOCK, first_rows, pool_rows, send_capacity
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime.ep.routing import RoutingTables
from megamoe_dsl.testing import problems

OPTIONS = [(saving, sorting) for saving in (True, False) for sorting in (True, False)]


def enumerate_rows(problem: Problem, idx: list[torch.Tensor]) -> list[dict[tuple[int, int, int], int]]:
    """Of every rank: row of each (source, token, slot) that it receives, by going through experts, ranks and tokens in order."""
    found = []
    for owner in range(problem.num_ranks):
        experts = range(owner * problem.experts_per_rank, (owner + 1) * problem.experts_per_rank)
        lists = [[(r, t, s) for r, one in enumerate(idx) for t, s in (one == e).nonzero().tolist()] for e in experts]
        firsts = first_rows([len(pairs) for pairs in lists])
        found.append({pair: first + i for first, pairs in zip(firsts, lists, strict=False) for i, pair in enumerate(pairs)})
    return found


def enumerate_list(problem: Problem, idx: torch.Tensor, owner: int, saving: bool, sorting: bool) -> list[int]:
    """The pairs that a rank fetches from tokens with these experts."""
    local = range(owner * problem.experts_per_rank, (owner + 1) * problem.experts_per_rank)
    pairs = [(e, t, s) for t, row in enumerate(idx.tolist()) for s, e in enumerate(row) if e in local]
    sets = [((e - local.start) // (len(local) if saving else 1), t) for e, t, _ in pairs]
    pairs = [min(p for p, its in zip(pairs, sets, strict=True) if its == one) for one in sorted(set(sets))]
    key = (lambda p: p) if sorting else (lambda p: (p[1], p[2]))
    return [t * problem.topk + s for _, t, s in sorted(pairs, key=key)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tables_are_those_of_an_enumeration(data: st.DataObject) -> None:
    """Masked slots, ranks without tokens, experts without any; every option."""
    problem = data.draw(problems(max_hidden=256, max_intermediate=128, max_experts_per_rank=5, max_topk=6, max_ranks=4, max_tokens=12))
    idx = [torch.tensor(one, dtype=torch.int64).reshape(-1, problem.topk) for one in data.draw(routings(problem)).topk_idx]
    saving, sorting = data.draw(st.sampled_from(OPTIONS))
    tables = RoutingTables.of(problem, idx, token_saving=saving, token_sorting=sorting)
    rows = enumerate_rows(problem, idx)
    for rank, (one, experts) in enumerate(zip(tables, idx, strict=True)):
        local = range(rank * problem.experts_per_rank, (rank + 1) * problem.experts_per_rank)
        assert one.expert_rows.tolist() == [sum(int((other == e).sum()) for other in idx) for e in local]
        for token, slots in enumerate(experts.tolist()):
            for slot, expert in enumerate(slots):
                wanted = rows[expert // problem.experts_per_rank][rank, token, slot] if expert >= 0 else -1
                assert int(one.pair_rows[token, slot]) == wanted
        for owner in range(problem.num_ranks):
            wanted_list = enumerate_list(problem, experts, owner, saving, sorting)
            assert one.send_pairs[owner, : len(wanted_list)].tolist() == wanted_list
            assert int(tables[owner].recv_pairs[rank]) == len(wanted_list) <= send_capacity(problem)
    assert all(row < pool_rows(problem) for per_rank in rows for row in per_rank.values())


def test_the_pool_holds_the_worst_routing() -> None:
    """All tokens on one rank, spread so that every expert has a row in a block of its own."""
    problem = Problem(256, 128, num_experts=8, topk=2, num_ranks=2, max_tokens_per_rank=3)
    received = 2 * 3 * 2
    assert pool_rows(problem) == 4 * ROW_BLOCK and first_rows([received - 3, 1, 1, 1])[-1] == pool_rows(problem)
    assert pool_rows(Problem(256, 128, num_experts=2, topk=2, max_tokens_per_rank=128)) >= first_rows([128, 128])[-1]


def test_traffic_counts_rows_that_cross() -> None:
    """Rank 0's first token has two experts of rank 1, its second one; rank 1's has one of rank 0; a dropped pair counts for nothing."""
    problem = Problem(256, 128, num_experts=4, topk=2, num_ranks=2, max_tokens_per_rank=2)
    found = Traffic.of(problem, [torch.tensor([[2, 3], [0, 2]]), torch.tensor([[1, -1]])])
    assert (found.pairs, found.tokens, found.row_bytes, found.bytes_saved) == (4, 3, 264, 264) and found.saved == 0.25
    assert Traffic.of(problem, [torch.tensor([[0, 1]]), torch.empty(0, 2, dtype=torch.int64)]).saved == 0.0
    unscaled = replace(problem, recipe="bf16xbf16")
    assert Traffic.of(unscaled, [torch.tensor([[2, 3]]), torch.empty(0, 2, dtype=torch.int64)]).bytes_saved == 512


def test_tokens_of_half_the_groups_save_more() -> None:
    """Eight groups, each the experts of a rank: limited to four of them a token has more experts of one rank."""
    problem = Problem(256, 128, num_experts=64, topk=8, num_ranks=8, max_tokens_per_rank=40)
    generator = torch.Generator().manual_seed(3)
    limited = [draw_experts(problem, 40, group_bias(problem, 40, 8, 4, generator), generator) for _ in range(8)]
    uniform = [draw_experts(problem, 40, torch.zeros(64), generator) for _ in range(8)]
    assert all(len(set(row)) <= 4 for one in limited for row in (one // 8).tolist())
    assert Traffic.of(problem, limited).saved > Traffic.of(problem, uniform).saved > 0.2


@pytest.mark.parametrize(("groups", "chosen", "field"), [(7, 2, "groups"), (8, 9, "chosen"), (8, 0, "chosen")])
def test_bad_groups_are_named(groups: int, chosen: int, field: str) -> None:
    problem = Problem(256, 128, num_experts=64, topk=8, num_ranks=8)
    with pytest.raises(ProblemError, match=f"{field} = "):
        group_bias(problem, 4, groups, chosen, torch.Generator())

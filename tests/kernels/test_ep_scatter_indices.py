"""Scatter indices of a caller: which rows pairs get, what is refused, and the layer with them, on simulated ranks, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ep_runs import check_report, problem, simulated, small_config
from mega_moe_runs import inputs

from megamoe_dsl.cases import random_case
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.runtime.ep.routing import RoutingTables, check_scatter_indices, scatter_indices, scattered_rows
from sweep import rarely

MOE = problem(40)


def drawn(seed: int, tokens: int = 40) -> torch.Tensor:
    """Experts of tokens, some pairs dropped."""
    generator = torch.Generator().manual_seed(seed)
    idx = torch.rand(tokens, MOE.num_experts, generator=generator).argsort(1)[:, : MOE.topk]
    return torch.where(torch.rand(idx.shape, generator=generator) < 0.2, -1, idx)


def shuffled(idx: torch.Tensor, seed: int) -> torch.Tensor:
    return scatter_indices(MOE, idx, torch.randperm(len(idx), generator=torch.Generator().manual_seed(seed)))


def test_tokens_are_in_the_order_of_their_keys() -> None:
    idx, keys = drawn(0), torch.arange(40) % 3
    found = scatter_indices(MOE, idx, keys).numpy()
    for expert in range(MOE.num_experts):
        tokens, slots = np.nonzero(idx.numpy() == expert)
        order = sorted(range(len(tokens)), key=lambda i: (int(keys[tokens[i]]), tokens[i]))
        assert [found[tokens[i], slots[i]] for i in order] == list(range(len(tokens)))
    assert bool((torch.from_numpy(found) == -1).eq(idx == -1).all())


def test_without_keys_rows_are_those_of_the_tables() -> None:
    idx = [drawn(1), drawn(2)]
    idx[1][idx[1] < 0] = MOE.num_experts + 1  # which names no expert either
    for rank, (one, tables) in enumerate(zip(idx, RoutingTables.of(MOE, idx), strict=True)):
        rows = tables.pair_rows
        assert torch.equal(scattered_rows(MOE, one, rows, scatter_indices(MOE, one)), rows)
        other = scattered_rows(MOE, one, rows, shuffled(one, rank))
        assert not torch.equal(other, rows)
        for expert in range(MOE.num_experts):
            assert torch.equal(other[one == expert].sort().values, rows[one == expert].sort().values)


IDX = torch.tensor([[0, 1, 2], [0, -1, 3], [0, 1, 9]])
GOOD = [[2, 0, 0], [0, 7, 0], [1, 1, -5]]  # the second of token 1 and the third of token 2 are dropped


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.tensor(GOOD[:2]), r"scatter_indices\.shape = \(2, 3\): must be \(3, 3\)"),
        (torch.tensor(GOOD).float(), r"scatter_indices\.dtype = torch\.float32: must be torch\.int64 or torch\.int32"),
        (
            torch.tensor([[11, -9, 0], *GOOD[1:]]),  # as far beyond expert 0's rows as those of expert 1 lie from them
            r"scatter_indices\[0, 0\] = 11: must be between 0 and 2: expert 0 has so many rows of this rank",
        ),
        (torch.tensor([*GOOD[:2], [1, -1, 0]]), r"scatter_indices\[2, 1\] = -1: must be between 0 and 1: expert 1 has"),
        (torch.tensor([GOOD[0], [-1, 7, 0], GOOD[2]]), r"scatter_indices\[1, 0\] = -1: must be between 0 and 2: expert 0 has"),
        (torch.tensor([[3, 0, 0], *GOOD[1:]]), r"scatter_indices\[0, 0\] = 3: must be between 0 and 2: expert 0 has"),
        (
            torch.tensor([*GOOD[:2], [1, 0, 0]]),
            r"scatter_indices\[2, 1\] = 0: must be another than scatter_indices\[0, 1\], which has this row of expert 1",
        ),
    ],
)
def test_bad_indices_are_named(given: torch.Tensor, message: str) -> None:
    check_scatter_indices(MOE, IDX, torch.tensor(GOOD))
    with pytest.raises(ProblemError, match=message):
        check_scatter_indices(MOE, IDX, given)


def test_values_are_not_looked_at_where_nothing_may_wait() -> None:
    check_scatter_indices(MOE, IDX, torch.full((3, 3), 99), values=False)
    with pytest.raises(ProblemError, match=r"scatter_indices\.device = .*meta.*: must be cpu"):
        check_scatter_indices(MOE, IDX, torch.tensor(GOOD).to("meta"), values=False)


@pytest.mark.parametrize(
    ("dispatch", "combine", "recipe"),
    [
        ({}, {}, "fp8xfp8"),
        rarely({"token_saving": False}, {"scatter": False}, "fp8xfp8"),
        rarely({"tail_sms": 1, "block_wise": False}, {"interleaved": False}, "fp8xfp8"),
        rarely({}, {"scatter": False}, "fp8xfp4"),
        rarely({}, {"interleaved": False}, "bf16xbf16"),
    ],
)
def test_two_ranks(dispatch: dict[str, object], combine: dict[str, object], recipe: str) -> None:
    """Rows lie where the indices say, and y is as without them."""
    moe = problem(40, recipe=recipe)
    case = random_case(moe, (40, 23), 3, mask=0.2)
    ep = simulated(small_config(moe, **dispatch), case, combine)
    given, found = [shuffled(one, rank) for rank, one in enumerate(case.topk_idx)], []
    for indices in (None, given):
        rows, report = ep.dispatch(inputs(case), scatter_indices=indices)
        check_report(report)
        places = [buffers.view("pair_rows")[: len(one)].clone() for buffers, one in zip(ep.ranks, case.topk_idx, strict=True)]
        acts = [RowActivations.of(one[:, : moe.intermediate].sign(), moe.formats.activations) for one in rows]
        y, report = ep.combine(acts, [len(one) for one in case.topk_idx])
        check_report(report)
        found.append((rows, places, y))
    (rows, places, y), (other_rows, other_places, other_y) = found
    for rank, idx in enumerate(case.topk_idx):
        assert torch.equal(y[rank].view(torch.int16), other_y[rank].view(torch.int16))
        for pair in (idx >= 0).nonzero().tolist():
            owner = int(idx[*pair]) // moe.experts_per_rank
            one, other = rows[owner][places[rank][*pair]], other_rows[owner][other_places[rank][*pair]]
            assert torch.equal(one.view(torch.int16), other.view(torch.int16))
        assert not torch.equal(places[rank], other_places[rank])

"""The expert-parallel kernels on four and eight simulated ranks: every routing to the bit, and the bytes between ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from ep_runs import checked_combine, checked_dispatch, problem, row_activations, simulated, small_config

from ep_traffic import Traffic
from group_limited import group_bias
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.cases.routing import draw_experts, routing_bias
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from sweep import rarely, sample

BF16_BYTES = 2
FP8, FP4, BF16 = "fp8xfp8", "fp8xfp4", "bf16xbf16"
PAIRS = ("fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8")
UNEVEN = (6, 0, 5, 1, 6, 4, 0, 2)
FULL = (6,) * 8
Bias = Callable[[Problem, torch.Generator], torch.Tensor]


def to_one_rank(moe: Problem, generator: torch.Generator) -> torch.Tensor:
    """The last one has all experts that any token names."""
    bias = torch.zeros(moe.num_experts)
    bias[-moe.experts_per_rank :] = 1e6
    return bias


def limited(moe: Problem, generator: torch.Generator) -> torch.Tensor:
    """The experts of two ranks, each token's own."""
    return group_bias(moe, moe.max_tokens_per_rank, moe.num_ranks, 2, generator)


ROUTINGS: dict[str, Bias] = {
    "uniform": routing_bias,
    "skewed": lambda moe, generator: routing_bias(moe, generator, skew=True),
    "group-limited": limited,
    "to one rank": to_one_rank,
}


@cache
def drawn(ranks: int, recipe: str) -> Case:
    """Tokens and weights of so many ranks."""
    return random_case(problem(6, num_ranks=ranks, num_experts=4 * ranks, topk=4, hidden=256, recipe=recipe), FULL[:ranks], ranks)


def case_of(ranks: int, routing: str, tokens: tuple[int, ...], mask: float, recipe: str) -> Case:
    """The first tokens of each rank, with experts of their own."""
    whole, generator = drawn(ranks, recipe), torch.Generator().manual_seed(ranks)
    bias = ROUTINGS[routing](whole.problem, generator)
    idx = [draw_experts(whole.problem, len(one), bias, generator, mask) for one in whole.x]
    fields = (whole.x, whole.x_sf, idx, whole.topk_weights)
    return Case(whole.problem, *([one[:n] for one, n in zip(field, tokens, strict=False)] for field in fields), whole.weights, exact=True)


def run_of(ranks: int, case: Case, combine: dict[str, Any] | None = None, **fields: Any) -> SimulatedEp:
    """On two SMs of each rank."""
    return simulated(small_config(case.problem, **fields), case, combine, seed=ranks)


@sample("4-skewed-fp8xfp4")
@pytest.mark.parametrize(
    ("ranks", "routing", "recipe"),
    [
        *((4, "group-limited", FP8), (8, "to one rank", FP8), (4, "skewed", FP4)),
        *(rarely(4, routing, FP8) for routing in ("uniform", "skewed", "to one rank")),
        *(rarely(8, routing, FP8) for routing in ("group-limited", "uniform", "skewed")),
        *(rarely(4, routing, FP4) for routing in ("group-limited", "uniform", "to one rank")),
        *(rarely(8, routing, FP4) for routing in ROUTINGS),
        *(rarely(ranks, routing, BF16) for ranks in (4, 8) for routing in ROUTINGS),
    ],
)
def test_ranks_with_few_tokens_and_without(ranks: int, routing: str, recipe: str) -> None:
    """Dropped pairs, ranks without a token or without a row, and the next launches on the same buffers with all tokens; a token's row
    crosses once for each rank."""
    few, many = (case_of(ranks, routing, tokens, mask, recipe) for tokens, mask in ((UNEVEN, 0.3), (FULL, 0.0)))
    ep = run_of(ranks, few)
    for case, launches in ((few, 1), (many, 2), (replace(few, topk_idx=[torch.full_like(idx, -1) for idx in few.topk_idx]), 1)):
        rows = sum(int((idx >= 0).sum()) for idx in case.topk_idx)
        row = case.problem.formats.activations.row_bytes(case.problem.hidden)
        assert checked_dispatch(ep, case, launches) == (rows, launches * row * Traffic.of(case.problem, case.topk_idx).tokens)
        assert checked_combine(ep, case, row_activations(ep, 0), launches).count == sum(map(len, case.x))


@pytest.mark.parametrize(
    ("ranks", "dispatch", "combine", "recipe"),
    [
        (1, {"tail_sms": 1}, {"interleaved": False, "token_blocks": 4}, FP8),
        rarely(1, {"tail_sms": 1}, {"interleaved": False}, FP8),
        rarely(4, {"tail_sms": 1}, {"interleaved": False, "token_blocks": 2}, FP8),
        rarely(8, {"tail_sms": 1}, {"interleaved": False}, FP8),
        rarely(8, {"tail_sms": 1}, {"scatter": False}, FP8),
        rarely(4, {"tail_sms": 1}, {"interleaved": False, "token_blocks": 2}, BF16),
        rarely(8, {"tail_sms": 1}, {"scatter": False}, BF16),
    ],
)
def test_rows_that_lie_once_and_results_that_warps_send(ranks: int, dispatch: dict[str, Any], combine: dict[str, Any], recipe: str) -> None:
    """Ranks without tokens and with many, group-limited, on the same buffers; a token crosses once, a result once."""
    for tokens in (UNEVEN, FULL):
        case = case_of(ranks, "group-limited" if ranks > 1 else "uniform", tokens, mask=0.2, recipe=recipe)
        ep = run_of(ranks, case, combine, **dispatch)
        row = case.problem.formats.activations.row_bytes(case.problem.hidden)
        assert checked_dispatch(ep, case, 2).crossed == 2 * row * Traffic.of(case.problem, case.topk_idx).tokens
        assert checked_combine(ep, case, row_activations(ep, 0)).count == sum(map(len, case.x))


WAYS = (
    ({}, {"interleaved": False}),
    ({"tail_sms": 1}, {"scatter": False}),
    ({"token_sorting": False}, {"interleaved": False, "block_m": 64, "task_tokens": 1}),
    ({"block_wise": False, "block_m": 64}, {"block_m": 192}),
    ({"token_saving": False}, {"block_m": 32}),
    ({"block_wise": False, "block_m": 32, "token_sorting": False}, {"interleaved": False, "block_m": 32}),
)
"""Every option of the kernels of SM100 that changes how tokens or results travel, or who waits for them: of dispatch, and of combine."""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("ranks", "recipe", "way", "routing"),
    [
        (4, "mxf4xmxf4", 0, "group-limited"),
        (8, "mxfp8xmxfp8", 1, "to one rank"),
        *(
            rarely(ranks, recipe, way, routing)
            for ranks, routing in ((4, "skewed"), (8, "group-limited"))
            for recipe in PAIRS
            for way in range(len(WAYS))
        ),
    ],
)
def test_options_of_pairs(ranks: int, recipe: str, way: int, routing: str) -> None:
    """Ranks without tokens and with many, on the same buffers; a row of a token crosses as often as the tables say."""
    dispatch, combine = WAYS[way]
    few = case_of(ranks, routing, UNEVEN, mask=0.3, recipe=recipe)
    config = small_config(few.problem).replace(num_stages=0, **dispatch)
    ep = simulated(config, few, combine, seed=ranks)
    row = few.problem.formats.activations.row_bytes(few.problem.hidden)
    for case, launches in ((few, 1), (case_of(ranks, routing, FULL, mask=0.0, recipe=recipe), 2)):
        traffic = Traffic.of(case.problem, case.topk_idx, config.token_saving)
        assert checked_dispatch(ep, case, launches).crossed == launches * row * traffic.tokens
        assert checked_combine(ep, case, row_activations(ep, 0), launches).count == sum(map(len, case.x))


@pytest.mark.sweep
@pytest.mark.parametrize("recipe", [FP8, FP4, BF16])
@pytest.mark.parametrize("routing", ["group-limited", "uniform", "skewed"])
def test_bytes_between_eight_ranks_are_those_of_the_tables(routing: str, recipe: str) -> None:
    """A token's row crosses once for each rank, without token saving once for each expert; its results cross once for each expert."""
    case = case_of(8, routing, FULL, mask=0.1, recipe=recipe)
    traffic, hidden = Traffic.of(case.problem, case.topk_idx), case.problem.hidden
    row = case.problem.formats.activations.row_bytes(hidden)
    assert 0 < traffic.tokens < traffic.pairs
    ep = run_of(8, case, {"scatter": False})
    assert checked_dispatch(ep, case).crossed == traffic.tokens * row
    assert checked_combine(ep, case, row_activations(ep, 0)).crossed == traffic.pairs * hidden * BF16_BYTES
    assert checked_dispatch(run_of(8, case, token_saving=False), case).crossed == traffic.pairs * row

"""`random_inputs`: each argument changes what it names, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl import Problem, ProblemError, random_inputs
from megamoe_dsl.cases import Case, TokenInputs, generators, random_case
from megamoe_dsl.quant import dequantize_nvfp4, quantize_nvfp4
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.reference import linear1, route

PROBLEM = Problem(256, 128, 32, 2, num_ranks=4, max_tokens_per_rank=256, recipe="fp8xfp8")


def draw(rank: int = 1, tokens: int = 256, seed: int = 3, **others: Any) -> TokenInputs:
    return random_inputs(PROBLEM, rank, tokens, seed, **others)


def same(one: TokenInputs, other: TokenInputs) -> list[bool]:
    return [torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True)]


def share_of_the_favorite(idx: torch.Tensor) -> tuple[int, float]:
    counts = torch.bincount(idx.flatten(), minlength=PROBLEM.num_experts)
    return int(counts.argmax()), float(counts.max() / counts.sum())


def away(idx: torch.Tensor) -> float:
    """The fraction of slots that name experts of other ranks than 1."""
    return float((idx // PROBLEM.experts_per_rank != 1).float().mean())


def test_each_argument_does_what_it_names() -> None:
    found = draw()
    assert [tuple(one.shape) for one in found] == [(256, 256), (256, 2), (256, 2), (256, 2)] and found.topk_idx.min() >= 0
    assert same(found, draw()) == [True] * 4
    for other in (draw(rank=2), draw(seed=4)):
        assert not any(same(found, other))
    assert [len(one) for one in draw(tokens=5)] == [5] * 4
    assert (draw(mask=1.0).topk_idx == -1).all() and 0.4 < (draw(mask=0.5).topk_idx == -1).float().mean() < 0.6
    assert same(found, draw(exact=True))[2] and not same(found, draw(exact=True))[0]
    assert (draw(exact=True).x.float() * 8 % 1 == 0).all() and not (found.x.float() * 8 % 1 == 0).all()
    favorites = [share_of_the_favorite(draw(rank=rank, skew=True).topk_idx) for rank in (0, 1)]
    assert favorites[0][0] == favorites[1][0] and min(share for _, share in favorites) > 0.3 > 3 * share_of_the_favorite(found.topk_idx)[1]
    assert abs(away(found.topk_idx) - 0.75) < 0.1
    assert abs(away(draw(remote=0.25).topk_idx) - 0.25) < 0.1
    assert (
        same(random_inputs(PROBLEM, 1, 256, 3, "cpu", 0.5, True, True, 0.25), draw(mask=0.5, skew=True, exact=True, remote=0.25))
        == [True] * 4
    )


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("exact", "least", "most"), [(True, 3.5, 7.0), (False, 0.5, 3.0)])
def test_gate_and_up_have_their_size(recipe: str, exact: bool, least: float, most: float) -> None:
    """About 4 of exact data, 1 of normal data."""
    problem, generator = Problem(1024, 512, 1, 1, recipe=recipe), torch.Generator().manual_seed(0)
    x, x_sf = (generators.exact_x if exact else generators.normal_x)(problem, 64, generator)
    weights = (generators.exact_weights if exact else generators.normal_weights)(problem, generator)
    one = Case(problem, [x], [x_sf], [torch.zeros(64, 1, dtype=torch.int64)], [torch.ones(64, 1)], [weights], exact)
    (job,) = one.jobs(route(problem, one.topk_idx))
    gate_up = linear1(job.x, job.x_sf, job.own.fc1, job.own.fc1_sf, bias=job.own.fc1_bias, factors=job.own.factors)
    assert all(least < float(half.double().std()) < most for half in gate_up.chunk(2, dim=1))


@pytest.mark.parametrize(("value", "kept"), [(21.0, 21.0), (-21.0, -21.0), (22.0, 21.0)])
def test_normal_tokens_of_nvfp4_are_not_saturated_up_to_21(value: float, kept: float) -> None:
    """Far beyond unit variance, by the factor of all tokens."""
    codes, sf = quantize_nvfp4(torch.full((1, 16), value), torch.tensor(generators.NORMAL_FACTOR))
    assert (dequantize_nvfp4(codes, sf) * 2.0**-7).unique().tolist() == [kept]
    x, x_sf = generators.normal_x(Problem(256, 128, 1, 1, recipe="nvfp4xnvfp4"), 500, torch.Generator().manual_seed(0))
    assert 0.8 < (dequantize_nvfp4(x, x_sf) * 2.0**-7).std() < 1.2


E2M1, SPARSE_E2M1 = 256, 29  # bytes of two codes, and of two of which one is zero
DRAWN = {  # how many values there are of tokens, weights and scales: x, x_sf, fc1, fc1_sf, fc2, fc2_sf
    "fp8xfp4": (31, 4, E2M1, 4, SPARSE_E2M1, 4),
    "mxf4xmxf4": (E2M1, 4, E2M1, 4, SPARSE_E2M1, 4),
    "nvfp4xnvfp4": (E2M1, 4, E2M1, 4, SPARSE_E2M1, 4),
    "mxfp8xmxfp8": (31, 4, 21, 4, 33, 4),
    "fp8xfp8": (9, 4, 9, 4, 33, 4),
    "fp8xmxfp4": (9, 4, E2M1, 5, SPARSE_E2M1, 4),
    "bf16xbf16": (63, 0, 63, 0, 33, 0),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_exact_data_have_every_value_that_sums_allow(recipe: str) -> None:
    problem, generator = Problem(512, 256, 4, 2, recipe=recipe), torch.Generator().manual_seed(1)
    x, x_sf = generators.exact_x(problem, 64, generator)
    weights = generators.exact_weights(problem, generator)
    values = [one.double() for one in (x, x_sf, weights.fc1, weights.fc1_sf, weights.fc2, weights.fc2_sf)]
    assert tuple(len(one.unique()) for one in values) == DRAWN[recipe]
    assert all(one.min() == -one.max() for one in values if (one < 0).any())
    if (factors := weights.factors) is not None:
        assert [len(column.unique()) for column in factors.T] == [1, 4, 4, 4, 4] and factors[:, 0].eq(1).all()
        assert all((of / size >= 0.75).all() and (of / size < 1.25).all() for of, size in ((factors[:, 3], 2**-4), (factors[:, 4], 2**-11)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_sums_are_counted_in_the_largest_unit_of_their_products(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are multiples of it, and one is an odd one."""
    asked = list[tuple[Any, ...]]()
    monkeypatch.setattr(generators, "assert_sums_exact", lambda *given: asked.append(given))
    case = random_case(Problem(256, 128, 1, 1, recipe=recipe), [20], 0)
    for job in case.jobs(case.check()):
        generators.check_linear1(case.problem, job)
    _, x, w, unit = asked[-1]
    products = x[:, None].double() * w.double() / unit
    assert (products % 1 == 0).all() and (products % 2 == 1).any()


def test_the_last_block_of_channels_has_a_weight_where_it_is_shorter() -> None:
    problem = Problem(256, 160, 2, 1, recipe="bf16xbf16")
    fc2 = generators.exact_weights(problem, torch.Generator().manual_seed(1)).fc2
    assert [((fc2 != 0)[..., part].sum(dim=2) == 1).all() for part in (slice(128), slice(128, 160))] == [True, True]


def test_scales_of_decoded_weights_are_within_what_one_of_hopper_s_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far apart the rows of weights are."""
    monkeypatch.setattr(generators, "normal", lambda shape, *_: torch.exp2(-torch.arange(shape[0]) % 30)[:, None].expand(shape))
    problem = Problem(512, 256, 4, 2, recipe="fp8xmxfp4")
    drawn = generators.normal_weights(problem, torch.Generator().manual_seed(1))
    for scales in (drawn.fc1_sf, drawn.fc2_sf):
        assert int(scales.max()) - int(scales.min()) == 13


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 4}, "rank = 4: must be between 0 and num_ranks - 1 = 3"),
        ({"tokens": 257}, "num_tokens = 257: must be"),
        ({"mask": 1.5}, "mask = 1.5: must be between 0 and 1"),
        ({"remote": 1.0}, "remote = 1.0: must be None, or between 0 and 1"),
        ({"seed": 1 << 60}, "seed = 1152921504606846976: must be between -2.63 and 2.64 - 1 when multiplied"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        draw(**given)


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        ((1, 1, 1), 0.0, r"len\(tokens\) = 3: must be num_ranks = 4"),
        ((1, 1, 257, 1), 0.0, r"tokens\[2\] = 257: must be"),
        ((1, 1, 1, 1), -0.5, "mask = -0.5: must be between 0 and 1"),
    ],
)
def test_tokens_of_ranks_that_do_not_fit_are_named(tokens: tuple[int, ...], mask: float, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        random_case(PROBLEM, tokens, 0, mask)


@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_a_row_loses_half_of_its_entries_until_its_sums_are_exact(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked at one by one, or all together; a token of zeros asks for nothing."""
    monkeypatch.setattr(generators, "_AT_ONCE", at_once)
    place, weight = torch.tensor([[0, 1, 2, 3], [0, 1, 0, 1], [2, 0, 1, 1]]), torch.ones(3, 4, dtype=torch.float64)
    values = torch.tensor([[1, 1, 2.0**30, 1], [0, 0, 0, 0]], dtype=torch.float64)
    assert generators.thin(place, weight, values).sum(dim=1).tolist() == [2, 4, 1]
    assert generators.thin(place, weight, values[1:]).all() and generators.thin(place, weight, values[:0]).all()


def test_a_case_moves_as_a_whole() -> None:
    case = random_case(Problem(256, 128, 4, 2, num_ranks=2, max_tokens_per_rank=4, recipe="fp8xfp8"), (3, 1), 5)
    moved = case.to("meta")
    tensors = [*moved.x, *moved.x_sf, *moved.topk_idx, *moved.topk_weights]
    weights = [getattr(one, name) for one in moved.weights for name in ("fc1", "fc2_sf")]
    assert {one.device.type for one in (*tensors, *weights)} == {"meta"}
    assert len(tensors) == 8 and moved.exact == case.exact and moved.problem == case.problem


def test_sums_that_fp32_does_not_count_are_refused() -> None:
    """By the norms of rows, in units of the products."""
    job: Any = SimpleNamespace(expert=3)
    rows = torch.full((1, 4), 3000.0)  # of norm 6000: 2^24 is less than its square
    with pytest.raises(generators.CaseError, match=r"expert 3.*sums of Linear1 reach 3\.6e\+07 units"):
        generators.assert_sums_exact(job, rows, rows, 1.0)
    generators.assert_sums_exact(job, rows, rows, 4.0)
    generators.assert_sums_exact(job, rows / 2, rows, 2.0)

"""Biases on both linears, and top-k weights that combine applies, in the compiled kernels of both architectures, on two simulated ranks."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import mega_moe_runs
import pytest
import sm90_runs
import torch
from mega_moe_runs import Layer, inputs
from sm90_runs import hopper_case
from stage_runs import prove_equal

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.simulated import compare
from ptx_of import artifact
from sweep import rarely, sample

KERNELS = [
    pytest.param(sm90_runs, "fp8xfp8", 8, False, id="SM90, tokens as columns"),
    pytest.param(sm90_runs, "fp8xfp8", 128, False, id="SM90, tokens as rows"),
    pytest.param(sm90_runs, "fp8xfp8", 128, True, id="SM90, tokens as rows, weights in combine"),
    pytest.param(sm90_runs, "fp8xmxfp4", 16, True, id="SM90, packed, weights in combine"),
    pytest.param(sm90_runs, "fp8xmxfp4", 128, False, id="SM90, decoded"),
    pytest.param(mega_moe_runs, "fp8xfp4", 32, False, id="SM100"),
    rarely(sm90_runs, "fp8xfp8", 8, True),
    rarely(sm90_runs, "fp8xmxfp4", 16, False),
    rarely(sm90_runs, "fp8xmxfp4", 128, True),
    rarely(mega_moe_runs, "fp8xfp4", 32, True),
    *(rarely(mega_moe_runs, "mxf4xmxf4", 32, weigh) for weigh in (False, True)),
]


def case_of(runs: ModuleType, problem: Problem, tokens: tuple[int, int], seed: int, exact: bool) -> Case:
    """Of SM90 with the tensor core's own sums."""
    make = hopper_case if runs is sm90_runs else random_case
    return make(problem, tokens, seed, exact=exact, mask=0.1)


def without(case: Case, *names: str) -> Case:
    """The same inputs with these biases zero, or with weights applied before Linear2."""
    zeros = {name: torch.zeros_like for name in names if name != "weigh_results"}
    weights = [replace(one, **{name: zero(getattr(one, name)) for name, zero in zeros.items()}) for one in case.weights]
    return replace(case, weights=weights, problem=replace(case.problem, weigh_results=False))


@sample("SM90, tokens as rows", "SM90, tokens as rows, weights in combine", "SM100")
@pytest.mark.parametrize(("runs", "recipe", "block_m", "weigh_results"), KERNELS)
def test_two_ranks(runs: ModuleType, recipe: str, block_m: int, weigh_results: bool) -> None:
    """Exact data to the bit, then random data, of SM90 to the bit too; every bias matters.  More tokens than a half tile has."""
    tokens = (80, 5) if block_m == 128 else (14, 6)
    moe = runs.problem(
        max(tokens), hidden=512, num_experts=4, recipe=recipe, biases=True, weigh_results=weigh_results, activation="swigluoai"
    )
    layer: Layer | None = None
    for seed, exact in enumerate((True, False)):
        case = case_of(runs, moe, tokens, seed, exact)
        layer = layer or Layer.of(artifact(runs.config(moe, block_m=block_m)), case)
        layer.check(case, seed)
        for name in ("fc1_bias", "fc2_bias", *(["weigh_results"] if weigh_results else [])):
            assert not any(torch.equal(a, b) for a, b in zip(without(case, name).reference().y, case.reference().y, strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("runs", "recipe", "block_m"),
    [(sm90_runs, "fp8xfp8", 16), rarely(sm90_runs, "fp8xmxfp4", 64), rarely(sm90_runs, "fp8xfp8", 128), (mega_moe_runs, "fp8xfp4", 32)],
)
def test_unfused(runs: ModuleType, recipe: str, block_m: int) -> None:
    """A launch per stage gives the fused kernel's bits; results that travel as E4M3, and are weighed in combine."""
    sm100 = runs is mega_moe_runs
    moe = runs.problem(9, num_experts=4, recipe=recipe, biases=True, weigh_results=sm100, combine="e4m3" if sm100 else "bf16")
    prove_equal(runs.config(moe, block_m=block_m, num_sms=2), [case_of(runs, moe, (9, 4), 2, exact=False)])


@pytest.mark.sweep
def test_a_pool_that_is_a_ring() -> None:
    """Linear2 reads the top-k weight of a row before the row may be another token's."""
    moe = sm90_runs.problem(130, num_experts=2, topk=1, biases=True)
    sm90_runs.prove(sm90_runs.config(moe, block_m=16, num_stages=2, num_sms=2, pool_rows=128), [(130, 100)], target_expert=0)


@pytest.mark.sweep
def test_weights_alone() -> None:
    """In combine without biases, and results that travel as E4M3, of both architectures' kernels."""
    for runs, block_m in ((sm90_runs, 8), (mega_moe_runs, 32)):
        moe = runs.problem(12, num_experts=4, weigh_results=True, combine="e4m3")
        runs.prove(runs.config(moe, block_m=block_m), [(12, 5), (2, 7)], mask=0.2)


def test_a_wrong_bias_is_noticed() -> None:
    """One row's of the busiest expert, in the kernel's memory."""
    moe = sm90_runs.problem(12, num_experts=4, biases=True)
    case = hopper_case(moe, (12, 7), 3, exact=False)
    layer = Layer.of(artifact(sm90_runs.config(moe)), case)
    layer.check(case)
    busiest = int(layer.moe.ranks[0].stats.argmax())
    for name in ("fc1_bias", "fc2_bias"):
        bias = getattr(layer.moe.ranks[0].weights, name)[busiest, 5]
        right = bias.clone()
        bias += 1.0
        y, report = layer.moe(inputs(case))
        assert report.findings == [] and any(one.violations for one in compare(case, y))
        bias.copy_(right)


def test_biases_that_do_not_fit_are_named() -> None:
    """Missing, not asked for, or of another shape; BF16 is taken as FP32."""
    moe = sm90_runs.problem(2, num_experts=4, biases=True)
    (weights, _) = hopper_case(moe, (1, 1), 0).weights
    plain = replace(weights, fc1_bias=None, fc2_bias=None)
    for given, problem, message in (
        (plain, moe, "fc1_bias = None: must be a tensor of a problem with biases = True"),
        (weights, replace(moe, biases=False), "fc1_bias = 'a tensor': must be None of a problem with biases = False"),
        (replace(weights, fc2_bias=torch.zeros(2, 128)), moe, r"fc2_bias.shape = \(2, 128\): must be \(2, 256\)"),
        (replace(weights, fc2_bias=torch.zeros(2, 256).double()), moe, r"fc2_bias.dtype = torch.float64: must be torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            given.validate(problem)
    assert weights.fc1_bias is not None
    rounded = ExpertWeights(weights.fc1, weights.fc1_sf, weights.fc2, weights.fc2_sf, weights.fc1_bias.bfloat16(), weights.fc2_bias)
    assert rounded.fc1_bias is not None and rounded.fc1_bias.dtype == torch.float32
    assert torch.equal(rounded.fc1_bias, weights.fc1_bias.bfloat16().float())
    rounded.validate(moe)

"""Launches of the layer on one GPU that begin before those before them have ended, in the simulator, as one stream.

Two calls share the workspace and the memory of chosen experts, so that what either leaves is wrong for the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from gemm_runs import BY_NAME
from megamoe_dsl import choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.quant import no_scales, quantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.simulated import launch_of, memory_of, simulate_gemm
from megamoe_dsl.sim import Report, Simulator
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import launches_of, simulate_experts
from sweep import sample

SMS, TOKENS, EXPERTS, TOPK = 3, 5, 8, 2
WAIT, LET = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
TOP, ROUTE, FC1, FC2, SUM = range(5)


@cache
def compiled(recipe: str, tokens: int = TOKENS, sms: int = SMS) -> tuple[Artifact, ...]:
    """Of configurations for so many tokens."""
    layer, target = ExpertLayer(256, 128, EXPERTS, TOPK, recipe=recipe), Target.typical("sm_90a", sms)
    chooses = choose(TopExpertsProblem(EXPERTS, TOPK), target, 0)
    return tuple(artifact(config) for config in (chooses, *layer.configs(target, tokens)))


def weights(recipe: str) -> LayerOperands:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(EXPERTS, *shape, generator=generator) for shape in ((256, 256), (256, 128))]
    made = [quantize_weight_e4m3(one) if recipe == "fp8xfp8" else (one.bfloat16(), no_scales(one)) for one in drawn]
    return LayerOperands(*made[0], *made[1])


def inputs(recipe: str) -> tuple[torch.Tensor, torch.Tensor, ExpertCall]:
    """Tokens of two calls, their logits, and a call of the first tokens, whose experts are not chosen yet."""
    generator = torch.Generator().manual_seed(2)
    idx, topk_weights = torch.zeros(TOKENS, TOPK, dtype=torch.int64), torch.zeros(TOKENS, TOPK)
    xs = torch.randn(2, TOKENS, 256, generator=generator).bfloat16()
    logits = torch.randn(2, TOKENS, EXPERTS, generator=generator)
    layer = ExpertLayer(256, 128, EXPERTS, TOPK, recipe=recipe)
    return xs, logits, ExpertCall(layer, xs[0], idx, topk_weights, weights(recipe))


@cache
def expected_of(recipe: str) -> list[torch.Tensor]:
    """Results of both calls by launches one by one."""
    xs, logits, first = inputs(recipe)
    found = []
    for number in range(2):
        idx, topk_weights = experts_of(logits[number])
        alone = replace(first, x=xs[number], topk_idx=idx, topk_weights=topk_weights, memory=None)
        found.append(simulate_experts(compiled(recipe)[ROUTE:], alone, race=False)[0])
    return found


def run(artifacts: tuple[Artifact, ...], seed: int = 0) -> tuple[list[bool], Report]:
    """Three calls in a stream, the last as the first: whether each result is that of launches one by one."""
    recipe = artifacts[ROUTE].config.problem.recipe
    xs, logits, first = inputs(recipe)
    idx, topk_weights = first.topk_idx, first.topk_weights
    calls = [replace(first, x=xs[number % 2].clone(), memory=first.workspace) for number in range(3)]
    counters, launches = torch.zeros(3, dtype=torch.int32), []
    for number, call in enumerate(calls):
        chosen = {"logits": logits[number % 2].data_ptr(), "bias": 0, "topk_idx": idx.data_ptr(), "topk_weights": topk_weights.data_ptr()}
        launches.append(launch_of(artifacts[TOP], {**chosen, "num_tokens": TOKENS}))
        launches += launches_of(artifacts[ROUTE:], call, (counters[1 + number % 2 :].data_ptr(), counters.data_ptr()))
    matrices = {name: tensor for name, tensor in first.operands._asdict().items() if tensor is not None}
    read = {"logits": logits, **{f"x{number}": call.x for number, call in enumerate(calls)}, **matrices}
    written = {"workspace": first.workspace, "topk_idx": idx, "topk_weights": topk_weights, "counters": counters}
    memory = memory_of(read, {**written, **{f"y{number}": call.y for number, call in enumerate(calls)}})
    report = Simulator(None, memory, seed=seed).run(launches)
    expected = expected_of(recipe)
    return [not counters.any() and torch.equal(call.y, expected[number % 2]) for number, call in enumerate(calls)], report


def experts_of(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights, by the kernel alone."""
    idx, topk_weights = torch.zeros(TOKENS, TOPK, dtype=torch.int64), torch.zeros(TOKENS, TOPK)
    written = {"topk_idx": idx, "topk_weights": topk_weights}
    arguments = {name: tensor.data_ptr() for name, tensor in {"logits": logits, **written}.items()}
    launch = launch_of(compiled("fp8xfp8")[TOP], {**arguments, "bias": 0, "num_tokens": TOKENS})
    Simulator(None, memory_of({"logits": logits}, written)).run([launch])
    return idx, topk_weights


@sample("fp8xfp8-0")
@pytest.mark.parametrize(("recipe", "seed"), [("fp8xfp8", 0), ("fp8xfp8", 1), ("bf16xbf16", 0)])
def test_calls_in_a_stream_are_exact(recipe: str, seed: int) -> None:
    artifacts = compiled(recipe)
    assert all(one.kernel.early for one in artifacts) and artifacts[FC2].config.prefetch_weights
    same, report = run(artifacts, seed)
    assert same == [True] * 3 and not report.findings


def test_linears_in_pairs_begin_early_too() -> None:
    """As they are for many tokens, given few."""
    artifacts = compiled("bf16xbf16", tokens=400, sms=4)
    assert [artifacts[number].config.cluster for number in (FC1, FC2)] == [2, 2] and artifacts[FC2].config.prefetch_weights
    same, report = run(artifacts)
    assert same == [True] * 3 and not report.findings


def lets_first(ptx: str) -> str:
    """A launch that lets the next one begin before it has waited."""
    assert ptx.count(WAIT) == ptx.count(LET) == 1 and ptx.index(WAIT) < ptx.index(LET)
    return ptx.replace(LET, "").replace(WAIT, LET + WAIT)


def without_wait(number: int) -> Callable[[str], str]:
    """Without the wait of this number."""

    def take_out(ptx: str) -> str:
        parts = ptx.split(WAIT)
        assert 0 <= number < len(parts) - 1
        return WAIT.join(parts[: number + 1]) + WAIT.join(["", *parts[number + 1 :]])[len(WAIT) :]

    return take_out


WRONG = {
    "Linear1 lets Linear2 begin while rows are sorted": (FC1, lets_first),
    "rows of A before Linear1 has ended": (FC2, without_wait(0)),
    "experts chosen while others are sorted": (TOP, without_wait(0)),
    "slots sorted before experts are chosen": (ROUTE, without_wait(0)),
    "tokens gathered while they are sorted": (FC1, without_wait(0)),
    "results added up before they are there": (SUM, without_wait(0)),
}


@sample("results added up before they are there")
@pytest.mark.parametrize("fault", WRONG)
def test_a_launch_that_does_not_wait_is_seen(fault: str) -> None:
    which, change = WRONG[fault]
    artifacts = list(compiled("fp8xfp8"))
    artifacts[which] = replace(artifacts[which], ptx=change(artifacts[which].ptx))
    same, report = run(tuple(artifacts))
    assert report.findings or not all(same)


@sample("packed-weights-first")
@pytest.mark.parametrize("name", ["packed-weights-first", "packed-pairs-weights-first"])
def test_one_gemm_after_another(name: str) -> None:
    """Each deals tiles while the one before it does, which has another counter."""
    run = BY_NAME[name]
    case = run.case(exact=True)
    expected = case.reference()
    assert not simulate_gemm(artifact(run.config), case.tensors, launches=4, seed=3).findings
    assert torch.equal(case.tensors.d, expected)

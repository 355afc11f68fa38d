"""Gradients of `moe` on a GPU: beside float64, the same bits twice, into FP32 totals, and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl import EpMoE, Problem, moe
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.quant import unscaled_weights
from megamoe_dsl.runtime import device_gradients
from runtime.test_expert_training import NAMES, assert_near, dy_of, in_float64, layer

pytestmark = pytest.mark.gpu


def on_gpu(*trained: str, **shape: int) -> dict[str, Any]:
    """`layer` of those tests, on the GPU."""
    moved = {name: one.detach().cuda() if isinstance(one, torch.Tensor) else one for name, one in layer(**shape).items()}
    return {name: one.requires_grad_() if name in trained else one for name, one in moved.items()}


def gradients(call: Any, given: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
    call(**given, **more).backward(dy_of(given["x"]).cuda())
    return {name: given[name].grad for name in NAMES if given[name].requires_grad}


def test_gradients_are_near_float64_and_the_same_twice() -> None:
    found, again = gradients(moe, on_gpu(*NAMES)), gradients(moe, on_gpu(*NAMES))
    assert_near({name: one.cpu() for name, one in found.items()}, in_float64(layer()), 0.01)
    assert all(torch.equal(found[name], again[name]) for name in NAMES)
    assert not found["w1"][3].any() and not found["w2"][3].any() and found["topk_weights"][2, 1] == 0


def test_a_layer_over_ranks_has_the_same() -> None:
    """On one rank, as many rows in blocks of an expert's own: y and all gradients, to the bit."""
    given, alone = on_gpu(*NAMES), on_gpu(*NAMES)
    (experts, own, hidden), idx = given["w1"].shape, given["topk_idx"]
    problem = Problem(hidden, own // 2, experts, idx.shape[1], 1, len(idx), recipe="bf16xbf16")
    halves = EpMoE(problem, unscaled_weights(given["w1"], given["w2"]))
    y = halves(given["x"], idx, given["topk_weights"])
    y.backward(dy_of(given["x"]).cuda())
    assert torch.equal(y, moe(**alone))
    for name, one in gradients(moe, alone).items():
        assert torch.equal(given[name].grad, one), name


@pytest.mark.parametrize("trained", NAMES)
def test_one_gradient_alone_is_the_same(trained: str) -> None:
    assert torch.equal(gradients(moe, on_gpu(trained))[trained], gradients(moe, on_gpu(*NAMES))[trained])


def test_gate_and_up_computed_again_give_the_same() -> None:
    found, expected = gradients(moe, on_gpu(*NAMES), recompute=True), gradients(moe, on_gpu(*NAMES))
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)


def test_weight_gradients_are_added_to_fp32_totals() -> None:
    given, totals = on_gpu(*NAMES), (torch.ones(4, 256, 256, device="cuda"), torch.ones(4, 256, 128, device="cuda"))
    gradients(moe, given, main_grads=totals)
    found = {name: (total - 1).cpu() for name, total in zip(("w1", "w2"), totals, strict=True)}
    assert_near(found, in_float64(layer()), 0.01)
    assert given["w1"].grad is None and given["w2"].grad is None


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_in_fp8_are_the_references(recompute: bool) -> None:
    """But for an approximate sigmoid; the same bits twice, and into FP32 totals."""
    how = {"recipe": "fp8xfp8", "recompute": recompute}
    found, again = gradients(moe, on_gpu(*NAMES), **how), gradients(moe, on_gpu(*NAMES), **how)
    assert all(torch.equal(found[name], again[name]) for name in NAMES)
    on_cpu = layer(*NAMES)
    moe(**on_cpu, **how).backward(dy_of(on_cpu["x"]))
    assert_near({name: one.cpu() for name, one in found.items()}, {name: on_cpu[name].grad.double() for name in NAMES}, 2e-3)
    assert torch.equal(found["w2"].cpu(), on_cpu["w2"].grad)
    totals = torch.ones(4, 256, 256, device="cuda"), torch.ones(4, 256, 128, device="cuda")
    gradients(moe, on_gpu(*NAMES), main_grads=totals, **how)
    for name, total in zip(("w1", "w2"), totals, strict=True):
        assert_near({name: total - 1}, {name: found[name].double()}, 0.01)


@pytest.mark.parametrize("how", [{"backend": "aot_eager"}, {"mode": "reduce-overhead"}], ids=["graph", "tree of CUDA graphs"])
def test_a_compiled_layer_has_the_same_results(how: dict[str, str]) -> None:
    """A tree of CUDA graphs records its second call and replays the third."""
    compiled = torch.compile(lambda **given: moe(**given) * 1, fullgraph=True, **how)
    with torch.no_grad():
        y = moe(**on_gpu())
        assert all(torch.equal(compiled(**on_gpu()), y) for _ in range(3))
    expected = gradients(moe, on_gpu(*NAMES))
    for _ in range(3):
        found = gradients(compiled, on_gpu(*NAMES))
        assert all(torch.equal(found[name], expected[name]) for name in NAMES)


def test_frozen_experts_take_no_weight_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beneath LoRA: of x alone the backward pass launches two GEMMs, and neither sums over rows."""
    launched: list[GemmProblem] = []
    run = device_gradients.run_gemm
    monkeypatch.setattr(device_gradients, "run_gemm", lambda problem, tensors: (launched.append(problem), run(problem, tensors))[1])
    gradients(moe, on_gpu("x"))
    assert [problem.sums_rows for problem in launched] == [False, False]
    gradients(moe, on_gpu(*NAMES))
    assert [problem.sums_rows for problem in launched[2:]] == [False, False, True, True]


@pytest.mark.parametrize(("tokens", "experts"), [(1, 4), (9, 1024)])
def test_few_rows_of_many_experts(tokens: int, experts: int) -> None:
    found = gradients(moe, on_gpu(*NAMES, tokens=tokens, experts=experts))
    assert_near({name: one.cpu() for name, one in found.items()}, in_float64(layer(tokens=tokens, experts=experts)), 0.01)

"""Two kernels on every simulated rank's stream: BF16 tokens are quantized, then the fused kernel runs on what that wrote."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from mega_moe_runs import problem

from megamoe_dsl.arch import ARCHES
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.cases.generators import NORMAL_FACTOR
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant import quantize_e2m1, quantize_e4m3, quantize_e4m3_f32, quantize_nvfp4
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_layer import Bf16Inputs, SimulatedLayer
from sweep import sample

TOKENS = [5, 0]
QUANTIZE = {
    "fp8xfp4": quantize_e4m3,
    "mxf4xmxf4": quantize_e2m1,
    "nvfp4xnvfp4": partial(quantize_nvfp4, factor=torch.tensor(NORMAL_FACTOR)),
    "fp8xfp8": quantize_e4m3_f32,
}


@pytest.fixture(scope="module", params=QUANTIZE)
def case(request: pytest.FixtureRequest) -> Case:
    return random_case(problem(8, recipe=request.param), TOKENS, 0, exact=False)


@pytest.fixture(scope="module")
def arch(case: Case) -> str:
    kernel = find_kernel("mega_moe")
    return next(name for name, recipes in kernel.recipes.items() if case.problem.recipe in recipes)


def moe_of(case: Case, arch: str) -> SimulatedMoE:
    config = find_kernel("mega_moe").choose(case.problem, Target(ARCHES[arch], 4), 8)
    return SimulatedMoE(artifact(config), case.weights)


@sample("nvfp4xnvfp4", "fp8xfp8")
def test_bits_are_those_of_inputs_quantized_on_the_host(case: Case, arch: str) -> None:
    values = [torch.randn(n, case.problem.hidden, generator=torch.Generator().manual_seed(n)).bfloat16() for n in TOKENS]
    pre_dispatch = artifact(PreDispatchConfig(case.problem, 2, arch))
    layer = SimulatedLayer(moe_of(case, arch), pre_dispatch)
    given = [Bf16Inputs(*one) for one in zip(values, case.topk_idx, case.topk_weights, strict=True)]
    y, report = layer(given)
    assert [str(finding) for finding in report.findings] == []
    quantized = [
        Inputs(*QUANTIZE[case.problem.recipe](x), idx, w) for x, idx, w in zip(values, case.topk_idx, case.topk_weights, strict=True)
    ]
    want, _ = moe_of(case, arch)(quantized)
    assert all(torch.equal(one, other) for one, other in zip(y, want, strict=True)) and y[0].any()
    again, report = layer(given)
    assert torch.equal(again[0], y[0]) and not report.findings


def test_another_kernel_is_refused(case: Case, arch: str) -> None:
    moe = moe_of(case, arch)
    with pytest.raises(ProblemError, match="must be a PreDispatchConfig for"):
        SimulatedLayer(moe, moe.artifact)

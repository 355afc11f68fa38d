"""Activations other than SiLU in the compiled kernels of both architectures and in the unfused layer, on two simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import mega_moe_runs
import pytest
import sm90_runs
import torch
from mega_moe_runs import Layer, inputs
from sm90_runs import HopperCase
from stage_runs import prove_equal

from megamoe_dsl.activation import SILU
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference import error_bound
from megamoe_dsl.runtime.simulated import compare
from ptx_of import artifact
from sweep import rarely, sample

OTHERS = ("swigluoai", "situ")
KERNELS = [(sm90_runs, "fp8xfp8", 8), (sm90_runs, "fp8xfp8", 128), (mega_moe_runs, "fp8xfp4", 32), (mega_moe_runs, "mxf4xmxf4", 32)]
IDS = ["SM90, tokens as columns", "SM90, tokens as rows", "SM100", "SM100, packed"]


class SoftCase(HopperCase):
    """Sums to the bit, and what approximations of the activation may change after them."""

    def bound(self) -> list[torch.Tensor]:
        return error_bound(self, sums_exact=True, accumulate="hopper")


def case_of(runs: ModuleType, problem: Problem, tokens: Sequence[int], seed: int, **data: Any) -> Case:
    """Exact data; or random data, of SM90 with the tensor core's own sums."""
    case = random_case(problem, tokens, seed, **data)
    kind = SoftCase if runs is sm90_runs and not case.exact else type(case)
    return kind(**{field.name: getattr(case, field.name) for field in fields(Case)})


def other_result(case: Case) -> bool:
    """Whether SiLU with the same clamp gives other results on every rank."""
    silu = replace(case, problem=replace(case.problem, activation=SILU)).reference().y
    return all(not torch.equal(a, b) for a, b in zip(silu, case.reference().y, strict=True))


@sample("SM90, tokens as columns-situ", "SM100-swigluoai")
@pytest.mark.parametrize("activation", OTHERS)
@pytest.mark.parametrize(("runs", "recipe", "block_m"), KERNELS, ids=IDS)
def test_two_ranks(runs: ModuleType, recipe: str, block_m: int, activation: str) -> None:
    """Exact data to the bit, then random data within the bound, in one kernel and on one set of buffers."""
    moe = runs.problem(14, hidden=512, num_experts=4, recipe=recipe, activation=activation)
    layer: Layer | None = None
    for seed, exact in enumerate((True, False)):
        case = case_of(runs, moe, (14, 6), seed, exact=exact, mask=0.1)
        layer = layer or Layer.of(artifact(runs.config(moe, block_m=block_m)), case)
        ranks = layer.check(case, seed)
        assert other_result(case) and sum(one.unequal for one in ranks) <= 0.01 * sum(y.numel() for y in case.reference().y)


@pytest.mark.parametrize("activation", ["swigluoai", rarely("situ")])
@pytest.mark.parametrize("runs", [sm90_runs, rarely(mega_moe_runs)], ids=["SM90", "SM100"])
def test_exact_division(runs: ModuleType, activation: str) -> None:
    """Without fast_math, and of gpt-oss with another clamp than its own."""
    clamp = 0.5 if activation == "swigluoai" else None
    moe = runs.problem(9, num_experts=4, activation=activation, activation_clamp=clamp, fast_math=False)
    layer = runs.prove(runs.config(moe), [(9, 4)])
    assert "div.rn.f32" in layer.moe.artifact.ptx and layer.moe.problem.activation_clamp == clamp


@pytest.mark.sweep
@pytest.mark.parametrize(("runs", "activation"), [(sm90_runs, "situ"), (mega_moe_runs, "swigluoai")], ids=["SM90", "SM100"])
def test_unfused(runs: ModuleType, activation: str) -> None:
    """A launch per stage gives the fused kernel's bits."""
    moe = runs.problem(12, num_experts=4, activation=activation)
    prove_equal(runs.config(moe, block_m=32, num_sms=2), [case_of(runs, moe, (12, 5), 2, exact=False)])


@pytest.mark.parametrize("field", ["activation", rarely("activation_clamp")])
def test_a_kernel_of_another_activation_is_noticed(field: str) -> None:
    """Compiled for SiLU with gpt-oss's clamp, or for its activation with another clamp."""
    moe = sm90_runs.problem(6, num_experts=4, activation="swigluoai")
    case = sm90_runs.hopper_case(moe, (6, 3), 0)
    wrong = replace(moe, **({"activation": SILU} if field == "activation" else {"activation_clamp": 0.5}))
    layer = Layer.of(artifact(sm90_runs.config(wrong)), replace(case, problem=wrong))
    y, report = layer.moe(inputs(case))
    assert report.findings == [] and all(one.violations for one in compare(case, y))

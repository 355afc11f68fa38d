"""What the simulator's results are compared with, and what it takes no kernel for."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl import Problem, Target, choose, random_weights
from megamoe_dsl.artifact.artifact import Artifact, CompileError, read_code
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.simulated import RankComparison, SimulatedMoE, compare, simulate_gemm

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8")
TARGET = Target.typical("sm_90a", 2)
WEIGHTS = [random_weights(PROBLEM, 0, 0)]
INF, NAN = math.inf, math.nan


def compared(got: list[float], want: list[float], bound: float) -> RankComparison:
    y, expected = (torch.tensor([one]).bfloat16() for one in (got, want))
    case: Any = SimpleNamespace(reference=lambda: SimpleNamespace(y=[expected]), bound=lambda: [torch.full(expected.shape, bound)])
    (found,) = compare(case, [y])
    assert (found.rank, found.tokens, found.elements) == (0, 1, len(got)) and type(found.max_error) is type(found.worst) is float
    return found


@pytest.mark.parametrize(
    ("got", "bound", "unequal", "violations", "max_error", "worst"),
    [
        ([1, 2, 4], 0, 0, 0, 0, 0),
        ([1, 2, 4.5], 0.5, 1, 0, 0.5, 1),
        ([1.5, 2, 3], 0.5, 2, 1, 1, 2),
        ([1, 2, 4.5], 0, 1, 1, 0.5, INF),
        ([1, 2, NAN], 1, 1, 1, NAN, NAN),
    ],
)
def test_results_are_counted_that_differ_and_that_are_too_far(
    got: list[float], bound: float, unequal: int, violations: int, max_error: float, worst: float
) -> None:
    found = compared(got, [1, 2, 4], bound)
    assert (found.unequal, found.violations, found.passed) == (unequal, violations, violations == 0)
    assert torch.equal(torch.tensor([found.max_error, found.worst]).nan_to_num(-1), torch.tensor([max_error, worst]).nan_to_num(-1))


def test_zeros_have_one_sign_and_other_shapes_are_refused() -> None:
    assert compared([-0.0], [0.0], 0).unequal == 0
    none: Any = SimpleNamespace(reference=lambda: SimpleNamespace(y=[torch.zeros(0, 3)]), bound=lambda: [torch.zeros(0, 3)])
    assert compare(none, [torch.zeros(0, 3)]) == [RankComparison(0, 0, 0, 0, 0, 0.0, 0.0)]
    with pytest.raises(ValueError, match=r"y\[0\]: shape \(1, 2\), allowed: \(1, 3\)"):
        compared([1, 2], [1, 2, 4], 0)


def made(config: Any) -> Artifact:
    return Artifact(config, "", b"", 0.0)


def halves() -> list[Artifact]:
    return [made(find_kernel(name).choose(PROBLEM, TARGET, 8)) for name in ("dispatch_grouped_gemm", "grouped_gemm_combine")]


FUSED = choose(PROBLEM, TARGET, 8)
STAGES = [made(one) for one in stage_configs(FUSED)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SimulatedMoE(STAGES[:2], WEIGHTS), r"stages = \['moe_dispatch', 'moe_fc1'\]: must be the kernels \['moe_dispatch', "),
        (lambda: SimulatedMoE(STAGES[::-1], WEIGHTS), r"stages = \['moe_combine', .*: must be the kernels \['moe_dispatch', "),
        (lambda: simulate_gemm(made(FUSED), None), "artifact = 'Sm90Config': must be an Artifact of a GEMM"),  # type: ignore[arg-type]
        (lambda: SimulatedEp(*halves(), WEIGHTS * 2), r"len\(weights\) = 2: must be num_ranks = 1"),
    ],
)
def test_what_is_no_kernel_of_a_layer_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ProblemError, match=f"^{message}"):
        call()


def test_what_no_compiler_made_is_named() -> None:
    with pytest.raises(CompileError, match=r"the PTX has no \.entry"):
        _ = made(FUSED).entry
    with pytest.raises(ValueError, match="not an ELF file"):
        read_code(b"PTX", "kernel")

"""Tensors of launches, each right but for one thing: the error names the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from megamoe_dsl.arch import SM100
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, GemmProblem, VarlenKProblem
from megamoe_dsl.kernel_cases.gather import gather_case
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernel_cases.gradients import gradient_case, varlen_k_case
from megamoe_dsl.problem import ProblemError

COUNTS = (40, 0, 88)
GATE_UP = {"num_groups": 3, "gate_up": "gate_first"}
PROBLEMS: dict[str, Any] = {
    "gemm fp8xfp8": GemmProblem(208, 256, "packed", 3),
    "gemm nvfp4xnvfp4": GemmProblem(256, 256, "packed", 3, recipe="nvfp4xnvfp4"),
    "gate and up fp8xfp8": GatherGemmProblem(256, 256, output="e4m3", preactivations=True, **GATE_UP),
    "gate and up nvfp4xnvfp4": GatherGemmProblem(256, 256, output="e2m1", recipe="nvfp4xnvfp4", **GATE_UP),
    "gradients": GatherGemmProblem(256, 256, num_groups=3, gradient="gate_first", recipe="bf16xbf16", transposed_b=True),
    "sums over gathered rows": VarlenKProblem(64, 96, num_groups=3),
    "sums over columns": VarlenKProblem(64, 96, num_groups=3, recipe="fp8xfp8", gathered=""),
}
READ_ONE_BY_ONE = {"groups", "sources", "factors", "up_factors", "hidden_factors", "row_weights", "dots"}
ANYWHERE: dict[str, set[str]] = {
    "gemm fp8xfp8": {"a_sf", "b_sf"},
    "gemm nvfp4xnvfp4": {"a_sf", "b_sf"},
    "gate and up fp8xfp8": {"b_sf", "d_sf"},
    "gate and up nvfp4xnvfp4": {"a_sf", "d_sf"},
}
"""These may begin anywhere, too."""
FREE = {
    "gemm fp8xfp8": {("a_sf", "stride")},
    "gate and up fp8xfp8": {("sources", "shape")},
    "gate and up nvfp4xnvfp4": {("sources", "shape")},
    "sums over gathered rows": {("sources", "shape")},
}
WHAT = {"dtype": "dtype", "shape": "shape", "dims": "shape", "stride": "stride()", "device": "device", "address": "data_ptr()"}
NAMES = {"d": "out", "d_sf": "out_sf"}
SIDES = {"a": "left", "a_sf": "left_sf", "b": "right", "b_sf": "right_sf"}
"""Of fields, as a caller knows them; of columns that are summed over."""


@cache
def tensors_of(name: str) -> Any:
    problem = PROBLEMS[name]
    if isinstance(problem, VarlenKProblem):
        return varlen_k_case(problem, COUNTS if problem.gathered else (128, 0, 256)).tensors
    if isinstance(problem, GatherGemmProblem):
        made = gradient_case if problem.gradient else gather_case
        return made(problem, COUNTS, **({"arch": SM100} if problem.formats.scales_in_mma else {})).tensors
    return gemm_case(problem, COUNTS, **({"arch": SM100} if problem.formats.scales_in_mma else {})).tensors


def changes(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Of one thing each."""
    yield "dtype", tensor.to(torch.float64)
    yield "shape", tensor[..., :-1].contiguous()
    yield "dims", tensor[None]
    yield "stride", torch.empty(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]
    yield "device", tensor.to("meta")
    yield "address", torch.empty(tensor.untyped_storage().nbytes() + 8).view(tensor.dtype)[1:].as_strided(tensor.shape, tensor.stride())


def parts_of(tensors: Any) -> dict[str, torch.Tensor]:
    """Tensors by field; without scales where there are none."""
    return {name: one for name, one in vars(tensors).items() if isinstance(one, torch.Tensor) and one.numel()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_thing_that_is_wrong_is_named(name: str) -> None:
    """Also that of a list's length and of the numbers that threads read one by one nothing is asked."""
    problem, tensors = PROBLEMS[name], tensors_of(name)
    names = NAMES | ({"groups": "ends"} if problem.of_experts else {}) | (SIDES if name == "sums over columns" else {})
    tensors.check(problem)
    for field, tensor in parts_of(tensors).items():
        for change, changed in changes(tensor):
            if (change == "address" and (field in READ_ONE_BY_ONE or field in ANYWHERE.get(name, ()))) or (field, change) in FREE.get(
                name, ()
            ):
                replace(tensors, **{field: changed}).check(problem)
                continue
            with pytest.raises(ProblemError) as refused:
                replace(tensors, **{field: changed}).check(problem)
            named, _, what = str(refused.value).split(" = ")[0].partition(".")
            own = named in (names.get(field, field), "row_weights") or change == "device"
            assert own and what.startswith(WHAT[change]), (field, change, refused.value)


@pytest.mark.parametrize("name", [name for name in PROBLEMS if not name.startswith("gemm")])
def test_of_another_problem_all_are_wrong(name: str) -> None:
    for other, problem in PROBLEMS.items():
        if other != name:
            with pytest.raises(ProblemError):
                tensors_of(name).check(problem)

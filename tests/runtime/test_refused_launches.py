"""Tensors of GEMMs, each right but for one thing: the error names the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from megamoe_dsl import k_grouped_gemm
from megamoe_dsl.arch import SM100
from megamoe_dsl.blocks.gemm.problem import GemmProblem, VarlenKProblem
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernel_cases.gradients import varlen_k_case
from megamoe_dsl.problem import ProblemError

PROBLEMS: dict[str, Any] = {
    "gemm fp8xfp8": GemmProblem(208, 256, "packed", 3),
    "gemm nvfp4xnvfp4": GemmProblem(256, 256, "packed", 3, recipe="nvfp4xnvfp4"),
    "sums over columns": VarlenKProblem(64, 96, num_groups=3, recipe="fp8xfp8", gathered=""),
}
ANYWHERE: dict[str, set[str]] = {
    "gemm fp8xfp8": {"a_sf", "b_sf", "groups"},
    "gemm nvfp4xnvfp4": {"a_sf", "b_sf", "groups", "factors"},
    "sums over columns": {"groups"},
}
"""These may begin anywhere."""
WHAT = {"dtype": "dtype", "shape": "shape", "dims": "shape", "stride": "stride()", "device": "device", "address": "data_ptr()"}
SIDES = {"a": "left", "a_sf": "left_sf", "b": "right", "b_sf": "right_sf", "groups": "ends"}
"""Of fields, as a caller of `k_grouped_gemm` knows them."""


@cache
def tensors_of(name: str) -> Any:
    problem = PROBLEMS[name]
    if isinstance(problem, VarlenKProblem):
        return varlen_k_case(problem, (128, 0, 256)).tensors
    return gemm_case(problem, (40, 0, 88), **({"arch": SM100} if problem.formats.scales_in_mma else {})).tensors


def check(name: str, tensors: Any) -> None:
    if name == "sums over columns":
        k_grouped_gemm(tensors.a, tensors.a_sf, tensors.b, tensors.b_sf, tensors.groups, tensors.d)
    else:
        tensors.check(PROBLEMS[name])


def changes(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Of one thing each."""
    yield "dtype", tensor.to(torch.float64)
    yield "shape", tensor[..., :-1].contiguous()
    yield "dims", tensor[None]
    yield "stride", torch.empty(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]
    yield "device", tensor.to("meta")
    yield "address", torch.empty(tensor.untyped_storage().nbytes() + 8).view(tensor.dtype)[1:].as_strided(tensor.shape, tensor.stride())


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_thing_that_is_wrong_is_named(name: str) -> None:
    tensors = tensors_of(name)
    names = {"d": "out"} | (SIDES if name == "sums over columns" else {})
    check(name, tensors)
    for field, tensor in ((field, one) for field, one in vars(tensors).items() if one is not None):
        for change, changed in changes(tensor):
            if (change == "address" and field in ANYWHERE[name]) or (name, field, change) == ("gemm fp8xfp8", "a_sf", "stride"):
                if name != "sums over columns":
                    check(name, replace(tensors, **{field: changed}))
                continue
            with pytest.raises(ProblemError) as refused:
                check(name, replace(tensors, **{field: changed}))
            named, _, what = refused.value.field.partition(".")
            assert (named == names.get(field, field) or change == "device") and what.startswith(WHAT[change]), (
                field,
                change,
                refused.value,
            )

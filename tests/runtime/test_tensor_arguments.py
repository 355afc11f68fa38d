"""Public functions given something other than a tensor, or one too many: the error names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from megamoe_dsl import (
    Problem,
    ProblemError,
    gemm,
    gemm_weights,
    grouped_gemm,
    k_grouped_gemm,
    moe,
    padded_rows,
    quantize_both,
    quantize_experts,
    scale_words,
    scales_by_column,
    scatter_indices,
)
from megamoe_dsl.runtime.gemm import Operands
from megamoe_dsl.runtime.top_experts import top_experts

A, B = torch.zeros(6, 128, dtype=torch.bfloat16), torch.zeros(2, 256, 128, dtype=torch.bfloat16)
SIDE, SCALES, ENDS = torch.zeros(32, 128).to(torch.float8_e4m3fn), torch.ones(1, 32), torch.tensor([0, 128], dtype=torch.int32)
PROBLEM = Problem(128, 128, 2, 1, recipe="fp8xfp8")
GEMM = {"a": A, "a_sf": None, "b": B[0], "b_sf": None}
CHOSEN = {"topk_idx": torch.zeros(6, 1, dtype=torch.int64), "topk_weights": torch.ones(6, 1)}
ROUTED = {"router_logits": torch.zeros(6, 2), "topk": 1}
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    moe: {"x": A, "w1": B, "w1_sf": None, "w2": B[:, :128], "w2_sf": None, **CHOSEN},
    gemm: GEMM,
    grouped_gemm: {**GEMM, "b": B, "groups": torch.zeros(2, dtype=torch.int32)},
    top_experts: {"logits": torch.zeros(6, 4), "topk": 2},
    k_grouped_gemm: {"left": SIDE, "left_sf": SCALES, "right": SIDE, "right_sf": SCALES, "ends": ENDS},
    quantize_both: {"x": A},
    quantize_experts: {"w1": B, "w2": B[:, :128, :128]},
    padded_rows: {"ends": ENDS, "rows": 128},
}
TENSORS = [
    (function, name, "None" in str(one.annotation))
    for function in CALLS
    for name, one in inspect.signature(function).parameters.items()
    if str(one.annotation).startswith("torch.Tensor")
]


@pytest.mark.parametrize(("function", "name", "optional"), TENSORS, ids=[f"{function.__name__}-{name}" for function, name, _ in TENSORS])
def test_what_is_no_tensor_is_named(function: Callable[..., Any], name: str, optional: bool) -> None:
    of_router = name in ("score_bias", "token_ids", "hash_table", "replicas")
    given = {**CALLS[function], **(dict.fromkeys(CHOSEN) | ROUTED if of_router and function is moe else {})}
    for value in (3, "a", [1.0]) if optional else (None, 3, "a", [1.0]):
        with pytest.raises(ProblemError, match=rf"\b{name}\b[^=]* = "):
            function(**{**given, name: value})


@pytest.mark.parametrize("name", ["left_sf", "right_sf", "out"])
def test_sums_over_columns_have_no_gradient(name: str) -> None:
    given = {**CALLS[k_grouped_gemm], "out": torch.zeros(2, 32, 32)}
    with pytest.raises(ProblemError, match=rf"^{name}\.requires_grad = True"):
        k_grouped_gemm(**{**given, name: given[name].clone().requires_grad_()})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_both(A[None]), r"x.shape = \(1, 6, 128\): must be \[tokens, hidden\]"),
        (lambda: k_grouped_gemm(SIDE[None], SCALES, SIDE, SCALES, ENDS), r"left.shape = \(1, 32, 128\): must be \[columns, rows of groups"),
        (lambda: k_grouped_gemm(SIDE, SCALES, SIDE[0], SCALES, ENDS), r"right.shape = \(128,\): must be \[columns, rows of groups"),
        (lambda: k_grouped_gemm(SIDE, SCALES, SIDE, SCALES, ENDS, out_dtype=torch.half), r"out.dtype = torch.float16: must be"),
        (lambda: scale_words(torch.zeros(4, dtype=torch.uint8)), r"sf.shape = \(4,\): must be \[\.\.\., rows, scales of a row\]"),
        (lambda: scales_by_column(torch.ones(4)), r"a_sf.shape = \(4,\): must be \[m, k / 128\]"),
        (lambda: gemm_weights(None, SCALES), "b = None: must be a tensor"),
        (lambda: scatter_indices(PROBLEM, CHOSEN["topk_idx"], torch.zeros(5)), r"keys.shape = \(5,\): must be \(6,\), one for each token"),
        (lambda: padded_rows(ENDS, -1), "rows = -1: must be between 0 and"),
        (lambda: padded_rows(ENDS[:0], 0), r"ends.shape = \(0,\): must be \(1,\)"),
        (lambda: padded_rows(ENDS.long(), 128), "ends.dtype = torch.int64: must be torch.int32"),
        (lambda: quantize_experts(B[0], B), r"w1.shape = \(256, 128\): must be \(experts, 2 \* intermediate, hidden\)"),
    ],
)
def test_other_shapes_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ProblemError, match=f"^{message}"):
        call()


def test_no_columns_have_no_sums() -> None:
    """Whatever is in the memory of the result; what is added to stays."""
    sides = torch.zeros(32, 0).to(torch.float8_e4m3fn), torch.ones(0, 32)
    given = (*sides, *sides, torch.zeros(2, dtype=torch.int32))
    total = torch.rand(2, 32, 32)
    assert not k_grouped_gemm(*given, torch.ones(2, 32, 32, dtype=torch.bfloat16)).any()
    assert torch.equal(k_grouped_gemm(*given, total.clone()), total) and not k_grouped_gemm(*given, out_dtype=torch.float32).any()


ROWS, IDX, WIDE = torch.ones(128, 128).bfloat16(), torch.zeros(128, 2, dtype=torch.int32), torch.ones(2, 256, 128).bfloat16()
LISTED = torch.arange(256, dtype=torch.int32) % 128
OPERATORS = [
    *(
        ("quantize_both", (ROWS, sources, rows, recipe))
        for sources, rows, recipe in ((None, True, "fp8xfp8"), (LISTED, False, "mxfp8xmxfp8"))
    ),
    *(("moe_route", (ROWS, IDX, 2, recipe)) for recipe in ("bf16xbf16", "fp8xfp8", "mxfp8xmxfp8")),
    *(("moe_quantize_weights", (WIDE, turned, recipe)) for turned in (False, True) for recipe in ("fp8xfp8", "mxfp8xmxfp8")),
    ("top_experts", (torch.rand(5, 4), None, None, None, None, 2, "softmax", 1, 1, 1.0, 0)),
]


@pytest.mark.parametrize(("name", "arguments"), OPERATORS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(OPERATORS)])
def test_compilers_know_the_shapes_of_results(name: str, arguments: tuple[Any, ...]) -> None:
    torch.library.opcheck(getattr(torch.ops.megamoe_dsl, name).default, arguments, test_utils=("test_faketensor", "test_schema"))


def test_compilers_give_operators_tensors_as_they_lie() -> None:
    """Kernels refuse other strides than the caller's."""
    names = {one.removeprefix("megamoe_dsl::") for one in torch._C._dispatch_get_all_op_names() if one.startswith("megamoe_dsl::")}
    assert names >= {"moe", "moe_training", "top_experts", "k_grouped_gemm", "quantize_both"}
    for name in names:
        assert torch.Tag.needs_exact_strides in getattr(torch.ops.megamoe_dsl, name).default.tags, name


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match=r"gemm\(\) missing 1 required positional argument: 'b'"):
        gemm(A, None, b_sf=None)  # type: ignore[call-arg]

    class Wrong(torch.Tensor):
        def get_device(self) -> int:
            raise AttributeError("no such place")

    with pytest.raises(AttributeError, match="no such place"):
        gemm(A.as_subclass(Wrong), None, B[0], None, out=torch.zeros(6, 256, dtype=torch.bfloat16).as_subclass(Wrong))


@pytest.mark.parametrize(
    ("a", "a_sf", "b", "factors", "recipe"),
    [
        (torch.float8_e4m3fn, torch.float32, torch.float8_e4m3fn, False, "fp8xfp8"),
        (torch.float8_e4m3fn, torch.float32, torch.uint8, False, "fp8xmxfp4"),
        (torch.float8_e4m3fn, torch.int32, torch.uint8, False, "fp8xfp4"),
        (torch.float8_e4m3fn, torch.uint8, torch.uint8, False, "fp8xfp4"),
        (torch.float8_e4m3fn, torch.int32, torch.float8_e4m3fn, False, "mxfp8xmxfp8"),
        (torch.uint8, torch.int32, torch.uint8, False, "mxf4xmxf4"),
        (torch.uint8, torch.int32, torch.uint8, True, "nvfp4xnvfp4"),
        (torch.uint8, torch.float8_e4m3fn, torch.uint8, True, "nvfp4xnvfp4"),
        (torch.bfloat16, torch.float32, torch.bfloat16, False, "bf16xbf16"),
    ],
)
def test_types_of_operands_say_the_recipe(a: torch.dtype, a_sf: torch.dtype, b: torch.dtype, factors: bool, recipe: str) -> None:
    """Scales of A tell Hopper's formats, which are floats, from Blackwell's; factors tell NVFP4."""
    one, scales, other = (torch.empty(1, 1, dtype=dtype) for dtype in (a, a_sf, b))
    assert Operands(one, scales, other, scales, factors=torch.ones(1) if factors else None).recipe == recipe

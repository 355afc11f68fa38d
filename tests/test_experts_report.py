"""Tables of a layer on one GPU (bench/experts/report.py): which times are set beside which."""

from __future__ import annotations

from typing import Any

from megamoe_dsl.bench.experts.report import markdown

OURS = {"ours, chosen": 100.0, "fc1, chosen": 60.0, "top_experts": 1.0, "route": 2.0, "fc2": 30.0, "sum": 4.0}
PARTIAL = {"sglang 16 x 64": 90.0, "sglang 64 x 64": 80.0, "permute, deep_gemm fc1": 54.0}
EQUAL = {
    "sorting, 16 rows": 7.0,
    "sorting, sglang 16 x 64": 110.0,
    "sorting, sglang 64 x 64": 120.0,
    "permute, deep_gemm fc1, Triton": 90.0,
    "permute, deep_gemm fc1, fused": 72.0,
    "deep_gemm layer, Triton": 160.0,
    "deep_gemm layer, fused": 150.0,
}


def cells(us: dict[str, float], passed: bool = True) -> list[dict[str, str]]:
    record: dict[str, Any] = {"tokens": 64, "flop": 1e9, "passed": passed, "us": {name: {"median": time} for name, time in us.items()}}
    heading, _, *rows = [line.strip("| ").split(" | ") for line in markdown([record]).splitlines()]
    return [dict(zip(heading, row, strict=True)) for row in rows]


def test_others_are_set_beside_ours_for_equal_work() -> None:
    (row,) = cells({**OURS, **PARTIAL, **EQUAL})
    assert row["SGLang's Triton, sorting too"] == "110" and row["sorting Triton / ours"] == "**1.10**"
    assert row["copy, DeepGEMM Linear1, activated"] == "72.0" and row["activated / our Linear1"] == "**1.20**"
    assert row["DeepGEMM's layer"] == "150" and row["DeepGEMM / ours"] == "**1.50**"


def test_others_that_do_less_keep_their_columns() -> None:
    (row,) = cells({**OURS, **PARTIAL, **EQUAL})
    assert row["SGLang's Triton"] == "80.0" and row["Triton / ours"] == "**0.80**"
    assert row["copy, DeepGEMM Linear1"] == "54.0" and row["theirs / our Linear1"] == "**0.90**"


def test_columns_that_no_point_has_are_left_out() -> None:
    (row,) = cells({**OURS, **PARTIAL})
    assert "sorting Triton / ours" not in row and "DeepGEMM / ours" not in row and "Triton / ours" in row


def test_a_point_that_was_wrong_has_no_row() -> None:
    assert cells({**OURS, **PARTIAL}, passed=False) == []

"""Tables of a layer on one GPU (bench/moe_layers/report.py): which times are set beside which, and in which table."""

from __future__ import annotations

from typing import Any

from moe_layers.report import markdown

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


def merged(us: dict[str, float], passed: bool = True) -> list[dict[str, str]]:
    record: dict[str, Any] = {"tokens": 64, "flop": 1e9, "passed": passed, "us": {name: {"median": time} for name, time in us.items()}}
    rows: dict[int, dict[str, str]] = {}
    for table in markdown([record]).split("\n\n"):
        heading, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
        for index, line in enumerate(lines):
            rows.setdefault(index, {}).update(zip(heading, line, strict=True))
    return list(rows.values())


def test_others_are_set_beside_ours_for_equal_work() -> None:
    (row,) = merged({**OURS, **PARTIAL, **EQUAL})
    assert row["SGLang's Triton, sorting too"] == "110" and row["sorting Triton / ours"] == "**1.10**"
    assert row["copy, DeepGEMM Linear1, activated"] == "72.0" and row["activated / our Linear1"] == "**1.20**"
    assert row["DeepGEMM's layer"] == "150" and row["DeepGEMM / ours"] == "**1.50**"


def test_routers_and_the_unfused_pipeline_are_set_beside_the_whole() -> None:
    whole = {"router": 5.0, "torch topk, softmax": 10.0, "torch bf16": 200.0, "router, ours": 107.5, "fused": 120.0}
    (row,) = merged({**OURS, **EQUAL, **whole})
    assert row["torch's router, choice and layer"] == "215" and row["torch routed / ours routed"] == "**2.00**"
    assert (row["fused"], row["unfused, DeepGEMM's GEMMs"], row["unfused / fused"]) == ("120", "150", "**1.25**")


def test_others_that_do_less_keep_their_columns() -> None:
    (row,) = merged({**OURS, **PARTIAL, **EQUAL})
    assert row["SGLang's Triton"] == "80.0" and row["Triton / ours"] == "**0.80**"
    assert row["copy, DeepGEMM Linear1"] == "54.0" and row["theirs / our Linear1"] == "**0.90**"


def test_columns_that_no_point_has_are_left_out() -> None:
    (row,) = merged({**OURS, **PARTIAL})
    assert "sorting Triton / ours" not in row and "DeepGEMM / ours" not in row and "Triton / ours" in row


def test_tables_that_no_library_has_anything_in_are_left_out() -> None:
    record: dict[str, Any] = {"tokens": 64, "flop": 1e9, "passed": True, "us": {name: {"median": time} for name, time in OURS.items()}}
    assert len(markdown([record]).split("\n\n")) == 1
    record["us"] |= {"quack layer 128 x 192": {"median": 200.0}}
    alone, beside = markdown([record]).split("\n\n")
    assert "torch" not in alone and beside.splitlines()[2] == "| 64 | 100 | 60.0 | 30.0 | 200 | **2.00** |"


def test_a_point_that_was_wrong_has_no_row() -> None:
    assert merged({**OURS, **PARTIAL}, passed=False) == []

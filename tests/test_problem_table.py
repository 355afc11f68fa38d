"""The table of a problem that commands show."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from megamoe_dsl import GemmProblem, Problem
from megamoe_dsl.cli.tables import problem_table

LAYER = {"hidden": 1024, "intermediate": 512, "num_experts": 16, "topk": 2, "num_ranks": 4, "max_tokens_per_rank": 64}
SHAPE = "Problem ranks 4 hidden, intermediate 1024, 512 experts, top-k 16 (4 per rank), 2 tokens per rank up to 64 "


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "activation silu recipe fp8xfp4, activation clamp none, fast math"),
        (
            {"combine": "e4m3", "biases": True, "activation_clamp": 7, "fast_math": False},
            "results travel as e4m3 activation silu, biases recipe fp8xfp4, activation clamp 7.0, precise math",
        ),
        ({"weigh_results": True}, "activation silu, top-k weights applied in combine recipe fp8xfp4, activation clamp none, fast math"),
    ],
)
def test_a_layer(fields: dict[str, Any], said: str) -> None:
    assert shown(Problem(**{**LAYER, **fields})) == SHAPE + said


def test_another_problem_has_a_row_for_each_field() -> None:
    found = shown(GemmProblem(128, 256))
    assert found.startswith("Problem n 128 k 256 kind dense num_groups 1 ") and " recipe fp8xfp8 " in f"{found} "


def shown(problem: Any) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(problem_table(problem))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]

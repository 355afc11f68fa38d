"""The table of a problem that commands show."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from megamoe_dsl import GemmProblem, Problem, Target, choose
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.cli.tables import artifact_table, problem_table
from megamoe_dsl.kernels.registry import kernel_of

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


def test_an_artifact_has_a_row_for_tensor_memory_where_there_is_some() -> None:
    for target, said in ((Target(SM100, 148), True), (Target(SM90, 132), False)):
        config = choose(Problem(**{**LAYER, "recipe": "fp8xfp4" if said else "fp8xfp8"}), target, 64)
        kernel, resources = kernel_of(config), SimpleNamespace(registers=168, stack_bytes=16)
        artifact: Any = SimpleNamespace(
            config=config, kernel=kernel, resources=resources, arch="sm", seconds=1.25, ptx="a\nb\n", dynamic_smem=1024
        )
        found, plan = printed(artifact_table(artifact)), config.tmem
        assert "for sm in 1.25 s; PTX of 2 lines registers 168 per thread" in found and "spills 16 bytes SMEM 1024 of" in found
        assert (plan is not None) == said == ("TMEM" in found)
        assert plan is None or (plan.used < plan.allocated and f"TMEM {plan.used} of {plan.allocated} allocated columns" in found)


def shown(problem: Any) -> str:
    return printed(problem_table(problem))


def printed(table: Table) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(table)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]

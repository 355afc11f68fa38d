"""The prepared kernel that a hint selects: the same on every rank, and large enough."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megamoe_dsl import ExpertLayer
from megamoe_dsl.arch import SM90
from megamoe_dsl.compat.engines.shared_parts import prepared_bounds
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.decode.config import DecodeConfig
from megamoe_dsl.kernels.moe import choose
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime import preparation
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.preparation import Selection, layer_kernels
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU, Table

CAPACITY = 100
PROBLEM = Problem(512, 256, 8, 2, max_tokens_per_rank=CAPACITY, recipe="fp8xfp8")


@given(st.lists(st.integers(1, CAPACITY), max_size=5), st.integers(0, CAPACITY), st.data())
def test_smallest_bound_that_covers_the_hint(bounds: list[int], hint: int, data: st.DataObject) -> None:
    selection = Selection(PROBLEM, bounds)
    mine, other = data.draw(st.integers(0, hint)), data.draw(st.integers(0, hint))
    chosen = selection.select(mine, hint)
    assert chosen == selection.select(other, hint), "ranks with different tokens agree"
    assert chosen >= hint and chosen in {*bounds, CAPACITY}
    assert not any(hint <= bound < chosen for bound in bounds)


def test_no_hint_means_the_capacity() -> None:
    assert Selection(PROBLEM, [8]).select(3) == CAPACITY


@pytest.mark.parametrize("bound", [0, -1, CAPACITY + 1])
def test_bounds_out_of_range(bound: int) -> None:
    with pytest.raises(ProblemError, match=f"bounds = {bound}"):
        Selection(PROBLEM, [bound])


def test_small_bounds_get_small_tiles() -> None:
    configs = Selection(PROBLEM, [1, 16]).configs(Target.typical("sm_90a"))
    assert configs[1].block_m < configs[CAPACITY].block_m
    assert {config.num_sms for config in configs.values()} == {132}


def test_a_gpus_own_table_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def table(gpu: str) -> Table:
        asked.append(gpu)
        return Table(gpu)

    monkeypatch.setattr(choose, "tuned_table", table)
    Selection(PROBLEM).configs(Target(SM90, 132, "NVIDIA H100"))
    Selection(PROBLEM).configs(Target.typical("sm_90a"))
    assert asked == ["NVIDIA H100", DEFAULT_GPU]


def test_an_engine_prepares_a_bound_where_the_next_kernel_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that every number of tokens gets the kernel that is chosen for it."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(MegaMoE, "prepare", lambda problem, target: 0)
    prepared_bounds.cache_clear()
    target = Target.typical("sm_90a")
    few = Selection(PROBLEM, prepared_bounds(PROBLEM, target))
    prepared_bounds.cache_clear()
    every, prepared = Selection(PROBLEM, range(1, CAPACITY + 1)).configs(target), few.configs(target)
    assert 1 < len(prepared) == len(set(every.values())) < CAPACITY
    assert all(prepared[few.select(tokens, tokens)] == every[tokens] for tokens in range(1, CAPACITY + 1))


def test_kernels_of_a_layer_are_prepared_up_to_the_most_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(preparation, "expert_kernels", lambda layer, target, tokens, router: [*tokens])
    monkeypatch.setattr(preparation, "compile_ahead", lambda *given: asked.append(given) or 7)
    target, layer = Target.typical("sm_90a"), ExpertLayer(256, 128, 4, 2)
    assert preparation.prepare_moe(layer, 3, target=target, jobs=2) == 7 and asked == [([1, 2, 3], None, 2)]
    with pytest.raises(ProblemError, match="most_tokens = 0: must be at least 1"):
        preparation.prepare_moe(layer, 0, target=target)


@pytest.mark.parametrize("unlike", [{"fused": False}, {"bf16_inputs": False}, {"shared_experts": 1}, {"pool_rows": 1024}, {}])
def test_kernels_of_a_layer_are_those_that_it_launches(unlike: dict[str, Any]) -> None:
    """Of a few tokens a launch of its own, but of none that another option computes."""
    problem = replace(PROBLEM, recipe="fp8xmxfp4")
    kernels = layer_kernels(problem, Target.typical("sm_90a"), [8], **unlike)
    assert any(isinstance(one, DecodeConfig) for one in kernels) == (not unlike or "pool_rows" in unlike)
    inputs = [one for one in kernels if isinstance(one, PreDispatchConfig)]
    assert [one.quantized for one in inputs] == ([True] if "bf16_inputs" in unlike else [True, False])
    assert {one.shared for one in inputs} == {unlike.get("shared_experts", 0)}
    of_layer = [one for one in kernels if not isinstance(one, DecodeConfig | PreDispatchConfig)]
    assert {one.pool_rows for one in (*inputs, *of_layer)} == {unlike.get("pool_rows")}
    assert {one.problem.num_experts for one in of_layer} == {8 + unlike.get("shared_experts", 0)}
    assert len({getattr(one, "stage", "fused") for one in of_layer}) == (5 if "fused" in unlike else 1)

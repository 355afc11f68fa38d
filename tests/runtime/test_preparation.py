"""Kernels compiled ahead: which ones, in parallel with a line each, and what is said where there is no compiler."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megamoe_dsl import ExpertLayer, MegaMoE, prepare_moe
from megamoe_dsl import target as target_module
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact import cache
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.kernels.moe.family import PreDispatchKernel
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, RoutingTablesConfig
from megamoe_dsl.kernels.moe.unfused.family import STAGES
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime import preparation
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.preparation import compile_ahead, expert_kernels, halves_kernels, layer_kernels
from megamoe_dsl.target import Target

PROBLEM = Problem(512, 256, 4, 2, max_tokens_per_rank=64, recipe="fp8xfp8")
UNSCALED = replace(PROBLEM, recipe="bf16xbf16")
TARGET = Target(SM90, 4)
LAYER = ExpertLayer(256, 128, 8, 2)


def test_kernels_of_all_tokens_hold_those_of_any_bounds() -> None:
    every = layer_kernels(PROBLEM, TARGET)
    assert len(every) > len(layer_kernels(PROBLEM, TARGET, ())) == 3
    for bounds in ((), (1,), (8, 33)):
        assert set(layer_kernels(PROBLEM, TARGET, bounds)) < set(every)
    assert len(layer_kernels(PROBLEM, TARGET, (), bf16_inputs=False)) == 2
    shared = layer_kernels(PROBLEM, TARGET, (), shared_experts=2)
    assert [one.problem.num_experts for one in shared] == [PROBLEM.num_experts + 2] * 3
    few = replace(PROBLEM, recipe="fp8xmxfp4")  # which a launch of its own takes, but for layers that it does not
    counts = [len(layer_kernels(few, TARGET, (), **one)) for one in ({}, {"shared_experts": 1}, {"fused": False}, {"bf16_inputs": False})]
    assert counts[0] > 3 and counts[1:] == [3, len(STAGES) + 2, 2]
    stages = layer_kernels(PROBLEM, TARGET, (), fused=False)
    assert len(stages) > 3 and stages[-2:] == layer_kernels(PROBLEM, TARGET, ())[-2:]


def test_a_gpu_that_is_given_is_not_the_one_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "target_at_hand", lambda: Target(SM90, 132))
    assert (preparation.grid_target(TARGET, 2).num_sms, preparation.grid_target(None, 2).num_sms) == (2, 130)
    monkeypatch.undo()
    monkeypatch.setattr(target_module, "local_target", lambda: Target(SM90, 132))
    monkeypatch.setenv(target_module.ARCH_VARIABLE, "sm_100a")
    assert target_module.target_at_hand() == Target.typical("sm_100a"), "the variable comes before the GPU"


def test_each_layer_asks_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[object], object, object]] = []
    monkeypatch.setattr("megamoe_dsl.runtime.layer.compile_ahead", lambda *given: asked.append(given) or 1)
    monkeypatch.setattr("megamoe_dsl.runtime.ep.layer.compile_ahead", lambda *given: asked.append(given) or 2)
    monkeypatch.setattr(preparation, "compile_ahead", lambda *given: asked.append(given) or 3)
    store, odd = ArtifactStore("folder"), replace(TARGET, num_sms=7)
    assert MegaMoE.prepare(PROBLEM, bounds=(8,), reserved_sms=3, target=odd, store=store, jobs=5) == 1
    assert EpMoE.prepare(PROBLEM, dispatch={"block_m": 64}, target=odd, store=store) == 2
    others: tuple[dict[str, Any], ...] = {"bf16_inputs": False, "shared_experts": 1, "pool_rows": 256}, {"bounds": (8,), "fused": False}
    assert [MegaMoE.prepare(PROBLEM, **one, target=TARGET) for one in others] == [1, 1]
    assert EpMoE.prepare(UNSCALED, combine={"block_m": 64}, target=TARGET, jobs=2, train=True) == 2
    router = TopExpertsProblem(8, 2)
    assert prepare_moe(LAYER, 3, router=router, target=odd, store=store, jobs=7) == 3
    assert asked == [
        (layer_kernels(PROBLEM, TARGET, (8,)), store, 5),
        (halves_kernels(PROBLEM, replace(TARGET, num_sms=6), {"block_m": 64}), store, None),
        *((layer_kernels(PROBLEM, TARGET, **one), None, None) for one in others),
        (halves_kernels(UNSCALED, TARGET, None, {"block_m": 64}, True), None, 2),
        (expert_kernels(LAYER, odd, (1, 2, 3), router), store, 7),
    ]
    assert asked[5][0][0].problem == router
    with pytest.raises(ProblemError, match=r"reserved_sms = 6: must be between 0 and 5"):
        MegaMoE.prepare(PROBLEM, reserved_sms=6, target=odd)
    with pytest.raises(ProblemError, match=r"most_tokens = 0: must be at least 1"):
        prepare_moe(LAYER, 0, target=odd)


def test_kernels_are_those_that_a_layer_takes() -> None:
    """In a pool of so many rows, and of a backward pass where there is one."""
    assert {one.pool_rows for one in layer_kernels(PROBLEM, TARGET, (), pool_rows=256)} == {256}
    first, second, tables = halves_kernels(UNSCALED, TARGET, {"block_m": 64}, {"block_m": 128})
    assert (first.block_m, second.block_m) == (64, 128) and tables == RoutingTablesConfig.of(first)
    trained = halves_kernels(UNSCALED, TARGET, {"block_m": 64}, {"block_m": 128}, train=True)
    launches = [first, second, tables, first.replace(trains=True), first.backward, second.backward]
    assert trained[:-2] == launches and [one.problem.kind for one in trained[-2:]] == ["aligned"] * 2
    activated = halves_kernels(UNSCALED, TARGET, {"gate_up": "activated"}, train=True)
    assert {one.gate_up for one in activated if isinstance(one, DispatchGemmConfig)} == {"activated"}
    assert [(one.trains, one.transposed, one.block_m, one.block_n) for one in activated if isinstance(one, DispatchGemmConfig)] == [
        (False, False, 128, 256),
        (True, False, 128, 256),
        (False, True, 128, 256),
    ]
    tokens = [one.kernels(TARGET, number) for one in (LAYER,) for number in (1, 200)]
    assert expert_kernels(LAYER, TARGET, (1, 200, 1)) == [config for configs in tokens for config in configs]


def test_kernels_go_to_the_cache_unless_a_store_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr("megamoe_dsl.artifact.workers.compile_into", lambda folder, *_: folders.append(folder))
    monkeypatch.setattr(cache, "dsl_version", lambda: "4")
    for store in (None, ArtifactStore(tmp_path / "own")):
        assert compile_ahead(layer_kernels(PROBLEM, TARGET, ()), store, 2) == 3
    assert folders == [tmp_path / "cache", tmp_path / "own"]


def test_what_is_missing_is_compiled_in_parallel_with_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels, store = (
        [PreDispatchKernel().choose(PROBLEM, TARGET, 0, quantized=quantized) for quantized in (True, False)],
        ArtifactStore(tmp_path),
    )
    assert compile_ahead([*kernels, kernels[0]], store, jobs=2) == 2
    lines = sorted(capsys.readouterr().err.splitlines())
    assert [line[:16] for line in lines] == ["compiled 1 of 2,", "compiled 2 of 2,"]
    assert all(store.load(one).cubin for one in kernels)
    assert compile_ahead(kernels, store) == 0 and capsys.readouterr().err == ""


def test_as_many_processes_compile_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default one for each core."""
    jobs: list[int] = []
    monkeypatch.setattr("megamoe_dsl.artifact.workers.compile_into", lambda folder, missing, own, step: jobs.append(own))
    monkeypatch.setattr(cache, "dsl_version", lambda: "4")
    for given in (3, None):
        assert compile_ahead(layer_kernels(PROBLEM, TARGET, ()), ArtifactStore(tmp_path), given) == 3
    assert jobs == [3, len(os.sched_getaffinity(0))]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cache.sys.stderr, "isatty", lambda: True, raising=False)
    with cache.showing_progress(2) as step:
        step(PreDispatchKernel().choose(PROBLEM, TARGET, 0, quantized=True))
    assert "compiling kernels" in capsys.readouterr().err


def test_without_a_compiler_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "dsl_version", lambda: None)
    monkeypatch.setattr("megamoe_dsl.artifact.workers.compile_into", lambda *_: pytest.fail("compiled"))
    with pytest.raises(ArtifactError, match=f"{tmp_path} has no kernel for it"):
        compile_ahead(layer_kernels(PROBLEM, TARGET, ()), ArtifactStore(tmp_path))
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setattr(cache, "dsl_version", lambda: "4")
    with pytest.raises(ProblemError, match=r"store\.folder"):
        compile_ahead(layer_kernels(PROBLEM, TARGET, ()), ArtifactStore(in_the_way / "folder"))

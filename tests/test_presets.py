"""Presets: importing one compiles its kernels in parallel or loads them; every number of tokens has its kernel."""

import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megamoe_dsl import choose, presets
from megamoe_dsl import target as target_module
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.artifact import cache
from megamoe_dsl.artifact import workers as compile_workers
from megamoe_dsl.artifact.artifact import Artifact, CompileError
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.options import CompiledOptions
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.registry import default_recipe, find_kernel
from megamoe_dsl.presets import PRESETS, Preset, compiled, projection
from megamoe_dsl.presets.compiled import CompiledPreset, configs_up_to, layer_of
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import ARCH_VARIABLE, Target, target_at_hand
from sweep import sample

IMPORT = """
import json, sys
from megamoe_dsl.presets import deepseek_v4_flash as preset
heavy = [name for name in ("torch", "cutlass") if name in sys.modules]
print(json.dumps({"kernels": len(preset.artifacts), "arch": str(preset.artifact(128).arch), "heavy": heavy}))
"""


def fake_artifact(config: object) -> Artifact:
    return Artifact(config, ".entry kernel(", b"cubin", 1.0)  # type: ignore[attr-defined]


def fill(folder: Path, arch: str) -> None:
    """Kernels of the Flash preset that took no time to compile."""
    target = Target.typical(arch)
    problem = layer_of(PRESETS["flash"], target, compiled.MAX_TOKENS)
    for config in configs_up_to(problem, compiled.MAX_TOKENS, target):
        ArtifactStore(folder).save(fake_artifact(config))


SHAPES = {
    "flash": (4096, 2048, 256, 6),
    "pro": (7168, 3072, 384, 6),
    "deepseek-v3": (7168, 2048, 256, 8),
    "kimi-k2": (7168, 2048, 384, 8),
    "qwen3-235b-a22b": (4096, 1536, 128, 8),
    "qwen3-30b-a3b": (2048, 768, 128, 8),
    "glm-4.5": (5120, 1536, 160, 8),
    "glm-4.5-air": (4096, 1408, 128, 8),
    "gpt-oss-120b": (2880, 2880, 128, 4),
    "gpt-oss-20b": (2880, 2880, 32, 4),
}
"""What kernels compute: hidden, intermediate, experts, top-k."""


def test_shapes_are_the_published_ones() -> None:
    found = {name: one.problem(128) for name, one in PRESETS.items()}
    assert {name: (one.hidden, one.intermediate, one.num_experts, one.topk) for name, one in found.items()} == SHAPES


@pytest.mark.parametrize("command", ["inspect", "simulate", "layout", "export", "bench", "tune"])
def test_help_names_every_preset(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).output
    assert set(PRESETS) <= set(re.findall(r"[\w.-]+\w", shown))


@sample("flash-sm_100a", "flash-sm_90a", "pro-sm_90a", "deepseek-v3-sm_90a", "gpt-oss-120b-sm_100a")
@pytest.mark.parametrize("arch", ("sm_100a", "sm_90a"))
@pytest.mark.parametrize("name", PRESETS)
def test_every_number_of_tokens_has_its_configuration_and_no_more_are_compiled(name: str, arch: str) -> None:
    target = Target.typical(arch)
    problem = PRESETS[name].problem(2048, recipe=default_recipe(find_kernel("mega_moe"), target.arch))
    found = configs_up_to(problem, 2048, target)
    assert set(found) == {choose(problem, target, tokens) for tokens in range(2049)}
    assert len(found) == len(set(found)) < 32 and configs_up_to(problem, 0, target) == [choose(problem, target, 0)]


@sample("sm_90a")
@pytest.mark.parametrize("arch", ("sm_100a", "sm_90a"))
def test_a_warm_import_compiles_nothing_and_is_light(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, arch)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(ARCH_VARIABLE, arch)
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    assert (found["arch"], found["heavy"]) == (arch, [])
    assert found["kernels"] >= 6


RECIPES = {
    "sm_90a": {"e2m1": "fp8xmxfp4", "e4m3": "fp8xfp8"},
    "sm_100a": {"e2m1": "fp8xfp4", "e4m3": "mxfp8xmxfp8"},
}


@pytest.mark.parametrize("arch", RECIPES)
@pytest.mark.parametrize("one", PRESETS.values(), ids=lambda one: one.module)
def test_importing_a_preset_gives_its_kernels(one: Preset, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a recipe with the published weights, with the model's activation and biases."""
    monkeypatch.setenv(ARCH_VARIABLE, arch)
    monkeypatch.setattr(compiled, "configs_up_to", lambda problem, _, target: [choose(problem, target, 200)])
    monkeypatch.setattr(cache, "compile_ahead", lambda *_: 0)
    monkeypatch.setattr(ArtifactStore, "get", lambda store, config: fake_artifact(config))
    found = getattr(presets, one.module)
    assert getattr(presets, one.module) is found
    del vars(presets)[one.module]  # for the other architecture
    assert found.problem.recipe == RECIPES[arch][one.weights] and found.artifact(200).config == found.config(200)
    assert (found.problem.activation, found.problem.biases) == (("swigluoai", True) if "gpt_oss" in one.module else ("silu", False))
    assert found.problem.weigh_results == found.problem.biases and found.problem.activation_clamp == one.clamp
    assert (found.problem.hidden, found.problem.num_experts) == (one.hidden, one.num_experts) and found.preset == one


def test_kernels_are_had_where_none_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(cache, "compile_ahead", lambda *_: pytest.fail("into a folder that cannot be written"))
    monkeypatch.setattr(ArtifactStore, "get", lambda store, config: fake_artifact(config))
    found = CompiledPreset.load("flash", target=Target.typical("sm_90a"), max_tokens_per_rank=8)
    assert found.artifact(8).config == found.config(8)


def test_a_chip_without_kernels_is_named() -> None:
    with pytest.raises(ProblemError, match="arch = 'sm_120a'"):
        layer_of(PRESETS["flash"], Target(replace(SM90, name="sm_120a"), 132), 8)


def test_no_other_name_is_a_preset() -> None:
    assert len({one.module for one in PRESETS.values()}) == len(PRESETS)
    with pytest.raises(ImportError, match="llama"):
        from megamoe_dsl.presets import llama  # noqa: F401


@pytest.mark.usefixtures("one_core")  # runtime/test_preparation.py compiles in other processes
def test_a_small_preset_is_compiled_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "megamoe_dsl")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    first = CompiledPreset.load("flash", target=Target.typical("sm_90a"), max_tokens_per_rank=40)
    assert len(first.artifacts) >= 2
    before, after = (one.getMessage() for one in caplog.records)
    assert re.fullmatch(rf"compiling {len(first.artifacts)} kernels in 1 processes into {re.escape(str(tmp_path))}", before)
    assert re.fullmatch(rf"compiled {len(first.artifacts)} kernels in [\d.]+ s", after)
    for tokens in (0, 1, 7, 40):
        artifact = first.artifact(tokens)
        assert artifact.config == first.config(tokens)
        assert artifact.resources.stack_bytes == 0
    monkeypatch.setattr(compile_workers, "compile_into", None)
    again = CompiledPreset.load("flash", target=Target.typical("sm_90a"), max_tokens_per_rank=40)
    assert {config: one.cubin for config, one in again.artifacts.items()} == {config: one.cubin for config, one in first.artifacts.items()}
    with pytest.raises(ProblemError, match="max_tokens_per_rank"):
        again.artifact(41)


def test_an_error_in_a_worker_is_told(tmp_path: Path) -> None:
    target = Target.typical("sm_90a")
    configs = configs_up_to(PRESETS["flash"].problem(40, recipe=default_recipe(find_kernel("mega_moe"), target.arch)), 40, target)
    for config in configs:
        object.__setattr__(config, "num_stages", 99)  # no process accepts it
    with pytest.raises(CompileError, match="num_stages = 99"):
        compile_workers.compile_into(tmp_path, configs, 2)


def test_the_target_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = CompiledOptions(kernel="gemm", fields="n=4096,k=7168")
    monkeypatch.setenv(ARCH_VARIABLE, "sm_100a")
    assert gemm.chosen.arch == SM100 and replace(gemm, arch="sm_90a").chosen.arch == SM90
    monkeypatch.setenv(ARCH_VARIABLE, "sm_90a")
    assert target_at_hand().arch == SM90
    monkeypatch.setenv(ARCH_VARIABLE, "sm_75")
    for choice in (target_at_hand, lambda: gemm.chosen):
        with pytest.raises(ProblemError, match="MEGAMOE_ARCH = 'sm_75': must be one of sm_100a, sm_90a"):
            choice()
    monkeypatch.delenv(ARCH_VARIABLE)
    assert gemm.chosen.arch == SM90
    monkeypatch.setattr(target_module, "local_target", lambda: None)
    assert target_at_hand() is None


def test_the_local_gpu_brings_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    kind, fine = driver.CUdevice_attribute, driver.CUresult.CUDA_SUCCESS
    values = {kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9, kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0}
    monkeypatch.setattr(driver, "cuInit", lambda flags: (fine,))
    monkeypatch.setattr(driver, "cuDeviceGetAttribute", lambda name, device: (fine, values.get(name, 114)))
    monkeypatch.setattr(driver, "cuDeviceGetName", lambda length, device: (fine, b"NVIDIA H100 PCIe".ljust(length, b"\0")))
    assert target_module.local_target() == Target(SM90, 114, "NVIDIA H100 PCIe")
    failed = driver.CUresult.CUDA_ERROR_UNKNOWN
    for name, found in (("cuDeviceGetName", (failed, b"")), ("cuDeviceGetAttribute", (fine, 12)), ("cuInit", (failed,))):
        with monkeypatch.context() as patch:
            patch.setattr(driver, name, lambda *given, found=found: found)
            assert target_module.local_target() is None


def test_an_unknown_matrix_is_named() -> None:
    with pytest.raises(ProblemError, match=r"preset = 'gpt-5/o': must be one of .*kimi-k2/o, "):
        projection("gpt-5/o")


def test_grids() -> None:
    """A GPU has at most 256 SMs; CTAs come in pairs where that leaves none over."""
    assert [Target.typical("sm_90a", sms).pair for sms in (132, 131, 256)] == [2, 1, 2]
    with pytest.raises(ProblemError, match="num_sms = 257: must be at most 256, more than any GPU has"):
        Target.typical("sm_90a", 257)


def test_shapes_import_nothing_heavy() -> None:
    code = "import sys; import megamoe_dsl.presets; print([m for m in ('torch', 'cutlass', 'cuda') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

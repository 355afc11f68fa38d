"""Exported kernels: loaded without the DSL and without torch; what a launch asks of CUDA is what the manifest says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megamoe_dsl import export as export_module
from megamoe_dsl.cli import app
from megamoe_dsl.compile import compile_kernel
from megamoe_dsl.config import KernelConfig
from megamoe_dsl.config_sm90 import Sm90Config
from megamoe_dsl.export import Export, ExportError, export_kernel
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.artifact_store import ArtifactError
from megamoe_dsl.runtime.exported_kernel import ExportedKernel

CONFIGS = {
    "sm_100a": KernelConfig.choose(Problem(256, 128, 4, 2, 2, 64), 16, num_sms=4),
    "sm_90a": Sm90Config.choose(Problem(256, 128, 4, 2, 2, 64, dtypes="fp8xfp8"), 16, num_sms=3),
}
RECORDER = Path(__file__).with_name("launch_recorder.c")
CHILD = """
import ctypes, json, sys
sys.modules["cutlass"] = sys.modules["torch"] = None  # importing either raises ImportError
if sys.argv[2:]:
    ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
from megamoe_dsl.runtime.exported_kernel import ExportedKernel
kernel = ExportedKernel(sys.argv[1])
kernel(range(1000, 1000 + len(kernel.argument_names)), 77)
"""


@pytest.fixture(scope="module", params=CONFIGS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return export_kernel(CONFIGS[request.param], tmp_path_factory.mktemp("export") / "new", "kernel")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorder") / "recorder.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, RECORDER], check=True)
    return path


def launch(exported: Export, *arguments: Path) -> subprocess.CompletedProcess[str]:
    manifest = json.loads(exported.manifest.read_text())
    types = "".join("w" if one["type"] == "int32" else "q" for one in manifest["arguments"])
    command = [sys.executable, "-c", CHILD, str(exported.manifest), *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, "ARGUMENT_TYPES": types, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120
    )


def test_a_launch_asks_for_what_the_manifest_says(exported: Export, recorder: Path) -> None:
    done = launch(exported, recorder)
    assert done.returncode == 0, done.stderr
    asked, manifest = json.loads(done.stdout), json.loads(exported.manifest.read_text())
    for name in ("kernel", "grid", "block", "cluster", "dynamic_smem"):
        assert asked[name] == manifest[name], name
    assert asked["arguments"] == list(range(1000, 1000 + len(manifest["arguments"])))
    assert asked["stream"] == 77


def test_the_manifest_is_the_configurations(exported: Export) -> None:
    kernel = ExportedKernel(exported.manifest)
    config = CONFIGS[kernel.manifest["arch"]]
    assert kernel.config == config
    assert kernel.manifest["dynamic_smem"] == config.smem.num_bytes
    assert kernel.manifest["cluster"] == [config.cluster, 1, 1]
    assert kernel.argument_names[:7] == ["sym", "peers", "maps", "y", "stats", "num_tokens", "rank"]
    assert kernel.argument_names[9:] == ["trace", *(["l1_sf", "l2_sf"] if config.arch == "sm_90a" else [])]


def test_the_library_holds_the_cubin_that_compile_gives(exported: Export) -> None:
    config = CONFIGS[json.loads(exported.manifest.read_text())["arch"]]
    assert compile_kernel(config).cubin in exported.library.read_bytes()


def test_without_a_gpu_cuda_says_so(exported: Export) -> None:
    done = launch(exported)
    assert done.returncode != 0
    assert "RuntimeError" in done.stderr
    assert "CUDA" in done.stderr


def test_wrong_arguments_are_named(exported: Export) -> None:
    kernel = ExportedKernel(exported.manifest)
    with pytest.raises(ValueError, match="tuple size"):
        kernel([0] * 3, 0)
    with pytest.raises(TypeError, match="expected int"):
        kernel(["x"] * len(kernel.argument_names), 0)  # type: ignore[list-item]


def test_a_manifest_of_other_sources_is_refused(exported: Export, tmp_path: Path) -> None:
    manifest = {**json.loads(exported.manifest.read_text()), "sources": "00000000", "library": str(exported.library)}
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="other sources"):
        ExportedKernel(path)
    assert ExportedKernel(path, any_sources=True).argument_names
    path.write_text("{}")
    with pytest.raises(ArtifactError, match="not a manifest"):
        ExportedKernel(path)


def test_a_missing_compiler_is_an_error_that_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    files = Export(*(tmp_path / name for name in ("k.o", "k.so", export_module.RUNTIME, "k.json")))
    with pytest.raises(ExportError, match="set CC"):
        export_module.link(files)


def test_the_command_writes_all_files(tmp_path: Path) -> None:
    shape = ["--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2", "--ranks", "2", "--sms", "2"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["export", str(tmp_path), *shape, "--tokens", "8", "--name", "mine"])
    assert result.exit_code == 0, result.output
    assert {one.name for one in tmp_path.iterdir()} == {"mine.o", "mine.so", "mine.json", export_module.RUNTIME}
    assert "ExportedKernel" in result.output

"""Exported kernels: loaded without the DSL and without torch; what a launch asks of CUDA is what the manifest says."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cutlass.cute as cute
import pytest
from typer.testing import CliRunner

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact import export as export_module
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.export import Export, ExportError, export_kernel, find_compiler
from megamoe_dsl.artifact.store import ArtifactError
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.cli.app import app
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.exported_kernel import ExportedKernel, check_file
from sweep import sample

CONFIGS = {
    "sm_100a": choose(Problem(256, 128, 4, 2, 2, 64), Target.typical("sm_100a", 4), 16),
    "sm_90a": choose(Problem(256, 128, 4, 2, 2, 64, recipe="fp8xfp8"), Target.typical("sm_90a", 3), 16),
}
OTHERS = {
    "packed weights": choose(Problem(256, 128, 4, 2, 2, 64, recipe="fp8xmxfp4"), Target.typical("sm_90a", 3), 16),
    "gemm": choose(GemmProblem(256, 256), Target.typical("sm_90a"), 64),
    "dispatch of a half": DispatchGemmConfig(Problem(256, 128, 4, 2, 2, 64, recipe="fp8xfp8"), num_sms=2),
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


@sample("sm_90a")
def test_a_launch_asks_for_what_the_manifest_says(exported: Export, recorder: Path) -> None:
    done = launch(exported, recorder)
    assert done.returncode == 0, done.stderr
    asked, manifest = json.loads(done.stdout), json.loads(exported.manifest.read_text())
    for name in ("kernel", "grid", "block", "cluster", "dynamic_smem"):
        assert asked[name] == manifest[name], name
    assert asked["arguments"] == list(range(1000, 1000 + len(manifest["arguments"])))
    assert asked["stream"] == 77


def test_a_file_that_is_compared_is_closed(tmp_path: Path) -> None:
    file, before = tmp_path / "library", len(os.listdir("/proc/self/fd"))
    file.write_text("library")
    check_file(tmp_path, file, 7, export_module.sha256(file))
    for size, digest in ((8, ""), (7, "")):
        with pytest.raises(ArtifactError, match="export it again"):
            check_file(tmp_path, file, size, digest)
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_are_made_beside_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same file system, where each takes its place at once; what the folder had of the name is replaced."""
    runtime, moved, folder = tmp_path / export_module.RUNTIME, list[Path](), tmp_path / "folder"
    runtime.write_text("runtime")
    replacements = {"find_runtime": lambda: runtime, "link": lambda files, compiler: files.library.write_text("library")}
    replacements["compile_object"] = lambda config, path: (path.write_text("object"), ("kernel", []))[1]
    for name, one in replacements.items():
        monkeypatch.setattr(export_module, name, one)
    replaced = os.replace
    monkeypatch.setattr(os, "replace", lambda new, path: (moved.append(Path(new)), replaced(new, path)))
    for _ in range(2):
        found = export_kernel(CONFIGS["sm_90a"], folder, "name")
    assert sorted(folder.iterdir()) == sorted(found.files) and {one.parent.parent for one in moved} == {folder}


@pytest.mark.parametrize("variable", [None, "sm_100a"])
def test_what_the_dsl_is_asked_for(variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A function that TVM FFI calls, for the configuration's architecture."""
    asked: list[Any] = []

    def compiled(launch: Any, config: Any, placeholders: Any, stream: Any, options: str) -> Any:
        asked.append((config, {one for one in options.split() if not one.startswith("--dump-dir=")}))
        return SimpleNamespace(__cubin__=b"cubin", export_to_c=lambda *given, **named: asked.append((given, named)))

    monkeypatch.setenv("CUTE_DSL_ARCH", variable or "")
    if variable is None:
        monkeypatch.delenv("CUTE_DSL_ARCH")
    monkeypatch.setattr(cute, "compile", compiled)
    monkeypatch.setattr("megamoe_dsl.artifact.artifact.read_resources", lambda cubin: {"the kernel": None, "another": None})
    entry, arguments = export_module.compile_object(CONFIGS["sm_90a"], tmp_path / "k.o")
    options, named = {"--enable-tvm-ffi", "--gpu-arch=sm_90a", "--keep-cubin"}, {"function_name": "mega_moe"}
    assert asked == [(CONFIGS["sm_90a"], options), ((str(tmp_path / "k.o"),), named)]
    assert entry == "the kernel" and os.environ["CUTE_DSL_ARCH"] == (variable or "sm_90a")
    assert arguments[:2] == [{"name": "sym", "type": "int64"}, {"name": "peers", "type": "int64"}]
    assert arguments[5:7] == [{"name": "num_tokens", "type": "int32"}, {"name": "rank", "type": "int32"}]


def test_the_manifest_is_the_configurations(exported: Export) -> None:
    assert exported.files[-1] == exported.manifest  # who finds it finds the others
    kernel = ExportedKernel(exported.manifest)
    config = CONFIGS[kernel.manifest["arch"]]
    assert kernel.config == config
    assert kernel.manifest["dynamic_smem"] == config.smem.region.size
    assert kernel.manifest["cluster"] == [config.cluster, 1, 1]
    assert kernel.argument_names[:7] == ["sym", "peers", "maps", "y", "stats", "num_tokens", "rank"]
    assert kernel.argument_names[9:] == ["trace", *(["fc1_sf", "fc2_sf"] if config.arch.name == "sm_90a" else [])]


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_of_arguments_are_exported(name: str, tmp_path: Path) -> None:
    config = OTHERS[name]
    kernel = ExportedKernel(export_kernel(config, tmp_path, "kernel").manifest)
    assert kernel.config == config
    assert kernel.argument_names == [field.name for field in fields(kernel_of(config).arguments_type(config))]


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


@pytest.mark.parametrize(
    "field", ["sources", "library", "function", "arguments", "config", "config.kind", "config.problem", "files", "all"]
)
def test_a_damaged_manifest_is_refused(field: str, exported: Export, tmp_path: Path) -> None:
    manifest = {**json.loads(exported.manifest.read_text()), "library": str(exported.library)}
    place, _, name = field.rpartition(".")
    values = manifest[place] if place else manifest
    path = tmp_path / "kernel.json"
    for damaged in ({}, {name: None}, {name: 5}, {name: {"color": 1}}):
        kept = {one: value for one, value in values.items() if one != name} | damaged
        path.write_text(json.dumps([] if field == "all" else {**manifest, place: kept} if place else kept))
        with pytest.raises(ArtifactError, match=r"kernel\.json: "):
            ExportedKernel(path)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="not a manifest"):
        ExportedKernel(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"library": "gone.so"}, "gone.so is none of its files"),
        ({"library": "kernel.json"}, "kernel.json is none of its files"),
        ({"function": "other"}, "cannot be loaded or has no other"),
    ],
)
def test_a_library_that_does_not_load_is_refused(changes: dict[str, str], message: str, exported: Export, tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({**json.loads(exported.manifest.read_text()), "library": str(exported.library), **changes}))
    with pytest.raises(ArtifactError, match=message):
        ExportedKernel(path)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def turn_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"), [(cut, r"has \d+ bytes, not \d+"), (turn_a_bit, "SHA-256"), (Path.unlink, "No such file or directory")]
)
@pytest.mark.parametrize("which", ["library", "runtime"])
def test_a_damaged_file_is_refused_before_it_is_mapped(
    which: str, damage: Callable[[Path], None], message: str, exported: Export, tmp_path: Path
) -> None:
    shutil.copy(exported.manifest, tmp_path)
    for name in ("library", "runtime"):
        file: Path = getattr(exported, name)
        if name == which:
            shutil.copy(file, tmp_path)
            damage(tmp_path / file.name)
        else:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ArtifactError, match=f"{getattr(exported, which).name} .*{message}"):
        ExportedKernel(tmp_path / exported.manifest.name)


@pytest.mark.parametrize(
    ("compiler", "name", "message"),
    [
        ("no-such-compiler", "k", "CC = 'no-such-compiler': must be an installed C compiler"),
        ("cc '", "k", 'CC = "cc \'": must be an installed C compiler'),
        *(("cc", name, f"name = {name!r}: must be a file name without a folder") for name in ("", "..", "a/b", "/k", "k\0", "é" * 101)),
        ("cc", "libcute_dsl_runtime", "name = 'libcute_dsl_runtime': must be a file name without a folder, other than"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    compiler: str, name: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(ExportError) as refused:
        export_kernel(CONFIGS["sm_90a"], tmp_path / "new", name)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "command"), [(None, ["cc"]), ("", ["cc"]), ("cc -m64 '-DA=1 2'", ["cc", "-m64", "-DA=1 2"])])
def test_the_compiler_is_cc_unless_a_variable_has_another(given: str | None, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False) if given is None else monkeypatch.setenv("CC", given)
    assert find_compiler() == command


@pytest.fixture
def fake_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object with a constant, in place of a compiled kernel."""

    def compile_object(config: MegaMoeConfig, path: Path) -> tuple[str, list[dict[str, str]]]:
        source = f"const int block_m = {config.block_m};"
        subprocess.run(["cc", "-fPIC", "-c", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
        return "kernel", []

    monkeypatch.setattr(export_module, "compile_object", compile_object)


@pytest.mark.usefixtures("fake_object")
@pytest.mark.parametrize("compiler", ["false", "cc -no-such-option"])
def test_what_cannot_be_linked_leaves_an_older_export_as_it_was(compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = CONFIGS["sm_90a"]
    files = export_kernel(config, tmp_path, "k").files
    before = [one.read_bytes() for one in files]
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(ExportError, match=f"{compiler} cannot link k.o"):
        export_kernel(config.replace(block_m=32), tmp_path, "k")
    assert [one.read_bytes() for one in files] == before and set(tmp_path.iterdir()) == set(files)


@pytest.mark.usefixtures("fake_object")
def test_kernels_of_several_shapes_share_a_folder(tmp_path: Path) -> None:
    """And one runtime, which a process that has loaded it keeps: it is replaced, not rewritten."""
    config = CONFIGS["sm_90a"]
    first = export_kernel(config, tmp_path)
    assert "sm_90a-256x128-e4-k2-r2-t64-m" in first.manifest.name
    runtime = first.runtime.stat().st_ino
    with first.runtime.open("rb"):
        second = export_kernel(config.replace(problem=replace(config.problem, num_ranks=1)), tmp_path)
        assert second.runtime.stat().st_ino != runtime
    assert len(list(tmp_path.iterdir())) == len({*first.files, *second.files}) == 7


def test_the_command_writes_all_files(tmp_path: Path) -> None:
    shape = ["--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2", "--ranks", "2", "--sms", "2"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["export", str(tmp_path), *shape, "--tokens", "8", "--name", "mine"])
    assert result.exit_code == 0, result.output
    assert {one.name for one in tmp_path.iterdir()} == {"mine.o", "mine.so", "mine.json", export_module.RUNTIME}
    assert "ExportedKernel" in result.output

"""Folders with packages of others (bench/sites.py): which wheels are asked for, what of them is kept, where CUDA is."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from baselines import site_wheels
from baselines.site_wheels import SITES, make_site
from baselines.toolkit import cuda_toolkit
from megamoe_dsl.bench.results import packages
from moe_layers import sglang_site

FILES = {
    "sglang": ("kernels/ops/moe/moe_align.py", "kernels/ops/moe/other.py", "kernels/jit/csrc/moe/moe_align_kernel.cu", "srt/server.py"),
    "msgspec": ("__init__.py",),
    "apache-tvm-ffi": ("include/tvm/ffi/function.h",),
    "sgl-deep-gemm": ("__init__.py",),
}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A package index with a wheel of `FILES` for each requirement; those that were asked for."""
    asked: list[str] = []

    def download(command: list[str], check: bool) -> None:
        assert check and command[1:4] == ["-m", "pip", "download"] and command[command.index("--python-version") + 1] == "3.13"
        name, _, version = command[-1].partition("==")
        folder, about = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / f"{folder}.whl", "w") as wheel:
            for file in FILES[name]:
                wheel.writestr(f"{folder}/{file}", name)
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/RECORD", "")
        asked.append(command[-1])

    monkeypatch.setattr(site_wheels.subprocess, "run", download)
    return asked


def test_a_folder_has_what_is_run_and_says_what_it_is(index: list[str], tmp_path: Path) -> None:
    names = ("deep_gemm", "sglang")
    make_site(tmp_path, names, "3.13")
    assert sorted(index) == sorted({wheel.requirement for name in names for wheel in SITES[name]})
    kept = {path.relative_to(tmp_path / "sglang").as_posix() for path in (tmp_path / "sglang").rglob("*") if path.is_file()}
    assert kept == {"kernels/ops/moe/moe_align.py", "kernels/jit/csrc/moe/moe_align_kernel.cu"}
    assert (tmp_path / "sgl_deep_gemm" / "__init__.py").is_file() and (tmp_path / "msgspec" / "__init__.py").is_file()
    assert packages(tmp_path, None) == dict(one.split("==") for one in index)


def test_of_flashinfer_its_bf16_layer_is_kept() -> None:
    (wheel,) = SITES["flashinfer"]
    folder = "flashinfer/fused_moe/cute_dsl"
    assert all(map(wheel.kept, (f"{folder}/hopper/gather.py", f"{folder}/moe_utils.py", "flashinfer/tllm_enums.py")))
    assert not any(map(wheel.kept, (f"{folder}/blackwell/gather.py", "flashinfer/__init__.py", "flashinfer-0.dist-info/RECORD")))


def test_all_that_is_imported_is_kept() -> None:
    files = [f"{name.replace('.', '/')}.py" for name in (*sglang_site.THEIRS, f"{sglang_site.COMPILER}.utils.common")]
    assert all(map(sglang_site.needed, files))
    assert not any(map(sglang_site.needed, ("sglang/kernels/__init__.py", "sglang/kernels/jit.py", "sglang-1.dist-info/RECORD")))


def test_cuda_is_where_nvcc_says_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "#$ _CUDART_=cudart\n#$ _HERE_=/opt/cuda/bin\n#$ TOP=/opt/cuda/bin/..\n"

    def nvcc(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, "", said)

    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", nvcc)
    assert cuda_toolkit() == Path("/opt/cuda")
    said = "none.cu: no such file"
    assert cuda_toolkit() is None
    monkeypatch.setattr(subprocess, "run", missing)
    assert cuda_toolkit() is None

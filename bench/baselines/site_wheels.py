"""Folders with packages of others, made from the package index: what a benchmark takes as SITE.  Nothing of them belongs into a commit."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from moe_layers.sglang_site import needed

PYTHON = "3.12"
"""Of the machine with the GPUs."""
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")


@dataclass(frozen=True)
class Wheel:
    """A requirement, as pip takes it; `kept` says which of its files are unpacked."""

    requirement: str
    kept: Callable[[str], bool] = lambda name: True

    def unpack(self, folder: Path, python: str) -> None:
        """Into a folder.  Raises `subprocess.CalledProcessError` where pip finds none for this version of Python."""
        platforms = [word for one in PLATFORMS for word in ("--platform", one)]
        fixed = ("--no-deps", "--only-binary=:all:", "--python-version", python, *platforms)
        with tempfile.TemporaryDirectory() as fetched:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", *fixed, "-d", fetched, self.requirement], check=True)
            (path,) = Path(fetched).glob("*.whl")
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(folder, [name for name in wheel.namelist() if self.kept(name)])


def of_flashinfer(name: str) -> bool:
    """Whether a file of its wheel is one of the Python files of its BF16 layer on Hopper."""
    folder = "flashinfer/fused_moe/cute_dsl/"
    parts = "hopper/", "common/", "moe_utils.py"
    return name == "flashinfer/tllm_enums.py" or name.startswith(tuple(folder + part for part in parts))


TVM_FFI = Wheel("apache-tvm-ffi==0.1.15.post2")
SITES = {
    "deep_gemm": (Wheel("sgl-deep-gemm==0.1.5"), TVM_FFI),
    "sglang": (Wheel("sglang==0.5.23", needed), Wheel("msgspec==0.22.0"), TVM_FFI),
    "flashinfer": (Wheel("flashinfer-python==0.7.2.post1", of_flashinfer),),
}
"""The newest DeepGEMM that torch 2.11 loads, SGLang's kernels for a layer on one GPU, and what they import besides torch and Triton."""


def make_site(folder: Path, names: Collection[str], python: str = PYTHON) -> None:
    """These of `SITES` in one folder.  Raises `subprocess.CalledProcessError`."""
    for wheel in dict.fromkeys(wheel for name in names for wheel in SITES[name]):
        wheel.unpack(folder, python)

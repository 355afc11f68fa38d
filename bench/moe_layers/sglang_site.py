"""Modules of SGLang from an unpacked wheel of theirs (0.5.23), imported as they are: nothing of theirs is installed.

What these import of the rest of SGLang is answered here: an NVIDIA Hopper GPU, no variable of the environment set.  Kernels that SGLang
compiles when first called need its folder `kernels/jit` in the wheel, nvcc, a C++ compiler and ninja, and msgspec and tvm_ffi, which may
lie beside it (`bench/sites.py`).
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from baselines.toolkit import cuda_toolkit

PACKAGE, COMPILER = "sglang", "sglang.kernels.jit"
MOE, QUANTIZATION = "sglang.kernels.ops.moe.fused_moe_triton_kernels", "sglang.kernels.ops.quantization.fp8_kernel"
ALIGNMENT = "sglang.kernels.ops.moe.moe_align"
EXPERT_PARALLEL, COUNTS = "sglang.kernels.ops.moe.ep_moe_kernels", "sglang.kernels.ops.moe.triton_pad_expert_counts"
ACTIVATION = "sglang.kernels.ops.activation.silu_and_mul_clamp"
THEIRS = frozenset((MOE, QUANTIZATION, ALIGNMENT, EXPERT_PARALLEL, COUNTS, ACTIVATION))
ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("is_cuda", "is_sm90_supported", "is_arch_support_pdl"), lambda *_: True),
    **dict.fromkeys(("is_hip", "is_cpu", "is_musa", "is_xpu", "cpu_has_amx_support", "is_batch_invariant_mode_enabled"), lambda *_: False),
    "get_moe_padding_size": lambda *_: 0,
    "ceil_div": lambda value, step: -(-value // step),
}


class Answers(ModuleType):
    """A module of SGLang that is not theirs: `ANSWERS`, and for all other names something that says no when asked for a value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its modules are asked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return ANSWERS.get(name, Unset())


class Unset:
    """A variable of the environment that is not set, or a function that nobody calls."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unset()

    def get(self) -> bool:
        """Not set."""
        return False


class Finder:
    """Finds `THEIRS` in an unpacked wheel, and the compiler of their kernels where the wheel has it; `Answers` for the rest of SGLang."""

    def __init__(self, site: Path) -> None:
        self.site = site

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As an import asks for it."""
        if name in THEIRS or f"{name}.".startswith(f"{COMPILER}."):
            place = self.site / name.replace(".", "/")
            module, package = place.with_suffix(".py"), place / "__init__.py"
            if module.exists() or name in THEIRS:
                return spec_from_file_location(name, module) if module.exists() else None
            if package.exists():
                return spec_from_file_location(name, package, submodule_search_locations=[str(place)])
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == PACKAGE else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Of the rest."""
        return Answers(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def needed(file: str) -> bool:
    """Whether a file of SGLang's wheel is what is imported and compiled here, or says which version it is."""
    sources = f"{COMPILER.replace('.', '/')}/"
    return file.startswith(sources) or file.endswith(".dist-info/METADATA") or file.removesuffix(".py").replace("/", ".") in THEIRS


def load(site: Path, name: str) -> Any:
    """One of `THEIRS`.  Raises ImportError where the wheel lacks it, or Triton or what compiles their kernels is missing."""
    if not any(isinstance(one, Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, Finder(site))  # type: ignore[arg-type]
    if str(site) not in sys.path:
        sys.path.append(str(site))  # msgspec and tvm_ffi
    toolkit = cuda_toolkit()
    if toolkit is not None:
        os.environ.setdefault("CUDA_HOME", str(toolkit))  # their compiler takes the folder of an `nvcc` that may be a script
    return importlib.import_module(name)

"""MegaMoE kernels in CuTe DSL.  Importing this package imports neither torch nor cutlass; public names load on first use.

What takes long says so through `logging.getLogger("megamoe_dsl")`: at INFO, which kernels are compiled in how many processes, and that they
are done.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import sim
    from .artifact.artifact import Artifact, CompileError
    from .artifact.compile import compile_kernel
    from .blocks.gemm.config import GemmConfig
    from .blocks.gemm.problem import GemmProblem
    from .cases import Case, random_case, random_inputs, random_weights
    from .config_error import ConfigError
    from .kernels.expert_layer import ExpertLayer
    from .kernels.moe.sm90.config import Sm90Config
    from .kernels.moe.sm100.config import TIERS, Sm100Config
    from .problem import Problem, ProblemError
    from .quant import ExpertWeights
    from .runtime.buffers import Inputs
    from .runtime.expert_factors import expert_factors
    from .runtime.experts import moe
    from .runtime.gemm import gemm, grouped_gemm
    from .runtime.gemm_scales import scale_words, scales_by_column
    from .runtime.gemm_weights import gemm_weights
    from .runtime.layer import MegaMoE, mega_moe
    from .runtime.preparation import prepare_moe
    from .runtime.simulated import SimulatedMoE

__version__ = "0.1.0"

_PUBLIC = {
    "Artifact": "artifact.artifact",
    "Case": "cases",
    "CompileError": "artifact.artifact",
    "ConfigError": "config_error",
    "ExpertLayer": "kernels.expert_layer",
    "ExpertWeights": "quant",
    "GemmConfig": "blocks.gemm.config",
    "GemmProblem": "blocks.gemm.problem",
    "Inputs": "runtime.buffers",
    "MegaMoE": "runtime.layer",
    "Problem": "problem",
    "ProblemError": "problem",
    "SimulatedMoE": "runtime.simulated",
    "Sm100Config": "kernels.moe.sm100.config",
    "Sm90Config": "kernels.moe.sm90.config",
    "TIERS": "kernels.moe.sm100.config",
    "compile_kernel": "artifact.compile",
    "expert_factors": "runtime.expert_factors",
    "gemm": "runtime.gemm",
    "gemm_weights": "runtime.gemm_weights",
    "grouped_gemm": "runtime.gemm",
    "mega_moe": "runtime.layer",
    "moe": "runtime.experts",
    "prepare_moe": "runtime.preparation",
    "random_case": "cases",
    "random_inputs": "cases",
    "random_weights": "cases",
    "scale_words": "runtime.gemm_scales",
    "scales_by_column": "runtime.gemm_scales",
}
"""Where names come from: for type checkers it says the same above."""
_FOLDERS = ("sim",)
"""Folders that are public as they are."""

__all__ = [
    "TIERS",
    "Artifact",
    "Case",
    "CompileError",
    "ConfigError",
    "ExpertLayer",
    "ExpertWeights",
    "GemmConfig",
    "GemmProblem",
    "Inputs",
    "MegaMoE",
    "Problem",
    "ProblemError",
    "SimulatedMoE",
    "Sm90Config",
    "Sm100Config",
    "__version__",
    "compile_kernel",
    "expert_factors",
    "gemm",
    "gemm_weights",
    "grouped_gemm",
    "mega_moe",
    "moe",
    "prepare_moe",
    "random_case",
    "random_inputs",
    "random_weights",
    "scale_words",
    "scales_by_column",
    "sim",
]

if not TYPE_CHECKING:  # to a type checker it would make every name Any

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        if name in _FOLDERS:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

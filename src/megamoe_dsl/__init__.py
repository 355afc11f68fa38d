"""MegaMoE kernels in CuTe DSL.  Importing this package imports neither torch nor cutlass; public names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Problem": "problem",
    "ProblemError": "problem",
    "Sm100Config": "kernels.mega_moe.sm100.config",
    "Sm90Config": "kernels.mega_moe.sm90.config",
    "ConfigError": "config_error",
    "TIERS": "kernels.mega_moe.sm100.config",
    "ExpertWeights": "quant",
    "MegaMoE": "runtime.layer",
    "mega_moe": "runtime.layer",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

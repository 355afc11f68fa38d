"""What the host needs to know of the kernel for an architecture: its configuration, descriptors, weight pointers, entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...hardware.tensor_map import TensorMap
from ...problem import Problem
from .sm90 import maps as sm90_maps
from .sm90.config import Sm90Config
from .sm100 import maps as sm100_maps
from .sm100.config import Sm100Config

Config = Sm100Config | Sm90Config

WEIGHT_POINTERS = {"sm_100a": (), "sm_90a": ("fc1_sf", "fc2_sf")}
"""Weights that the kernel reads without a tensor map, in the order of its last arguments."""


def choose_config(problem: Problem, num_tokens: int, num_sms: int, gpu: str | None) -> Config:
    """The configuration for up to `num_tokens` tokens on every rank, on the architecture of the problem's recipe."""
    if problem.recipe == "fp8xfp8":
        return Sm90Config.choose(problem, num_tokens, num_sms=num_sms, gpu=gpu)
    return Sm100Config.choose(problem, num_tokens, num_sms=num_sms)


def tensor_maps(config: Config, sym: int, weights: Mapping[str, int]) -> list[TensorMap]:
    """The table of tensor maps; `weights` are the addresses of fc1, fc1_sf, fc2, fc2_sf in kernel order."""
    if isinstance(config, Sm90Config):
        return sm90_maps.tensor_maps(config, sym, weights)
    return sm100_maps.tensor_maps(config, sym, weights)


def entry(config: Config) -> tuple[Callable[..., Any], Any]:
    """The launching function and placeholder arguments of the right types.  Imports the DSL."""
    from cutlass import Int32, Int64

    zero, word = Int64(0), Int32(0)
    common = (zero, zero, zero, zero, zero, word, word, zero, zero, zero)
    if isinstance(config, Sm90Config):
        from .sm90.context import Sm90Arguments
        from .sm90.kernel import mega_moe as launch_sm90

        return launch_sm90, Sm90Arguments(*common, zero, zero)
    from .context import Arguments
    from .sm100.kernel import mega_moe as launch_sm100

    return launch_sm100, Arguments(*common)

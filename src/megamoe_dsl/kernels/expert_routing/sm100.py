"""Configurations of SM100: the same kernels, for tokens whose scales the tensor core applies, or that have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...arch import SM100, Arch
from ...blocks.gemm.problem import GEMM_RECIPES
from ...recipe import RECIPES
from .config import RouteConfig, SumConfig, TopExpertsConfig

SUMMED_IN_MMA = tuple(name for name in GEMM_RECIPES if not RECIPES[name].promoted)


@dataclass(frozen=True)
class Sm100RouteConfig(RouteConfig):
    """Tokens become E4M3 or E2M1 with UE8M0 scales of 32 channels, or NVFP4, or stay BF16."""

    arch: ClassVar[Arch] = SM100
    recipes = SUMMED_IN_MMA


@dataclass(frozen=True)
class Sm100SumConfig(SumConfig):
    """Of results in BF16, as everywhere."""

    arch: ClassVar[Arch] = SM100
    recipes = SUMMED_IN_MMA


@dataclass(frozen=True)
class Sm100TopExpertsConfig(TopExpertsConfig):
    """From logits, as everywhere."""

    arch: ClassVar[Arch] = SM100

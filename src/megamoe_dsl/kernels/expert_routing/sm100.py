"""Configurations of SM100: the same kernels, for tokens whose scales the tensor core applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...arch import SM100, Arch
from .config import RouteConfig, SumConfig


@dataclass(frozen=True)
class Sm100RouteConfig(RouteConfig):
    """Tokens become E4M3 or E2M1 with UE8M0 scales of 32 channels."""

    arch: ClassVar[Arch] = SM100
    promoted = False


@dataclass(frozen=True)
class Sm100SumConfig(SumConfig):
    """Of results in BF16, as everywhere."""

    arch: ClassVar[Arch] = SM100
    promoted = False

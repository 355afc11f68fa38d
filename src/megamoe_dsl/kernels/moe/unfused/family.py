"""The stages of the unfused layer, as the registry knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ....arch import Arch
from ....problem import Problem
from ....recipe import RECIPES
from ....target import Target
from ...kernel import Kernel, with_fields
from ..arguments import Arguments
from ..config import MegaMoeConfig
from ..family import ARGUMENTS, MegaMoeKernel
from .config import LAYER_STAGES, LayerStage, StageConfig

FUSED = MegaMoeKernel()


class StageKernel(Kernel):
    """One stage: a launch on every rank, after that of the stage before."""

    problem = Problem
    configs: ClassVar[Mapping[str, type[StageConfig]]] = dict.fromkeys(MegaMoeKernel.configs, StageConfig)
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        arch: tuple(name for name in names if RECIPES[name].scaled and not RECIPES[name].weights.factor)
        for arch, names in MegaMoeKernel.recipes.items()
    }

    def __init__(self, stage: LayerStage) -> None:
        """Those that talk to other ranks wait for all CTAs."""
        self.stage, self.name, self.resident = stage, f"moe_{stage.name}", stage.name in ("dispatch", "combine")  # type: ignore[misc]

    def has(self, config: object) -> bool:
        return getattr(config, "stage", None) == self.stage.name

    def choices(self, arch: Arch) -> set[str]:
        """Fields of the fused kernel's configuration; `num_stages` is the stage's own."""
        return FUSED.choices(arch)

    def choose(self, problem: Problem, target: Target, num_tokens: int, *, num_stages: int = 0, **fields: Any) -> StageConfig:
        """The stage of the fused kernel's choice for the target.  Raises `ConfigError`."""
        return StageConfig(FUSED.choose(problem, target, num_tokens, **fields), self.stage.name, num_stages)

    def code_of(self, config: StageConfig) -> str:
        return f"kernel.{'linear' if config.multiplies else config.stage}_kernel"

    def arguments_type(self, config: StageConfig) -> type[Arguments]:
        """Those of the fused kernel, where the stage multiplies, and `results`."""
        return FUSED.arguments_type(config.fused, results=True) if config.multiplies else with_fields(Arguments, *ARGUMENTS, "results")

    def label(self, config: StageConfig) -> str:
        return f"{FUSED.label(config.fused)}-{config.stage}"


STAGES = tuple(StageKernel(stage) for stage in LAYER_STAGES)
"""In the order of their launches."""


def stage_configs(fused: MegaMoeConfig) -> tuple[StageConfig, ...]:
    """The stages that compute what this fused kernel does, with the same tile and pool, in the order of their launches."""
    return tuple(StageConfig(fused, stage.name) for stage in LAYER_STAGES)

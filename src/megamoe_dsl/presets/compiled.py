"""All kernels of a preset, compiled or loaded from the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import choose, config_type, find_kernel
from ..problem import Problem
from ..recipe import RECIPES
from ..target import Target, target_at_hand
from .shapes import Preset, preset

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact

MAX_TOKENS = 8192
"""Tokens per rank up to which a preset's kernels are compiled: the capacity is a compile-time constant of a kernel."""


def layer_of(one: Preset, target: Target, max_tokens_per_rank: int) -> Problem:
    """The model's layer, in the first recipe of the target's fused kernel whose weights have the published element type.  Raises
    `ProblemError`."""
    kernel = find_kernel("mega_moe")
    config_type(kernel, target.arch)
    recipe = next(name for name in kernel.recipes[target.arch.name] if RECIPES[name].weights.element == one.weights)
    own: dict[str, Any] = {"activation": one.activation, "activation_clamp": one.clamp, "biases": one.biases, "weigh_results": one.biases}
    return one.problem(max_tokens_per_rank, recipe=recipe, **own)


def configs_up_to(problem: Problem, num_tokens: int, target: Target) -> list[MegaMoeConfig]:
    """All configurations that `choose` returns for 0 to `num_tokens` tokens, in that order.  Tries every number, because a measured
    configuration may reappear (8192 take about 0.1 s)."""
    return list(dict.fromkeys(choose(problem, target, tokens) for tokens in range(num_tokens + 1)))


@dataclass(frozen=True)
class CompiledPreset:
    """A preset's layer with the kernels for any number of tokens on a rank.

    problem    the layer, in a recipe of the target that has the published weights
    artifacts  configuration to kernel
    """

    preset: Preset
    problem: Problem
    target: Target
    artifacts: Mapping[MegaMoeConfig, Artifact]

    @classmethod
    def load(cls, name: str, *, target: Target | None = None, max_tokens_per_rank: int = MAX_TOKENS) -> CompiledPreset:
        """The kernels for 0 to `max_tokens_per_rank` tokens, from the cache or compiled; in parallel if the cache is writable.  Raises
        `ProblemError` and `CompileError`."""
        from ..artifact.cache import compile_ahead
        from ..artifact.store import ArtifactStore

        target = target or target_at_hand() or Target.typical("sm_100a")
        one = preset(name)
        problem = layer_of(one, target, max_tokens_per_rank)
        configs = configs_up_to(problem, max_tokens_per_rank, target)
        store = ArtifactStore()
        if store.why_unusable() is None:
            compile_ahead(configs, store)
        return cls(one, problem, target, MappingProxyType({config: store.get(config) for config in configs}))

    def config(self, num_tokens: int) -> MegaMoeConfig:
        """The configuration for at most `num_tokens` tokens on every rank.  Raises `ProblemError` beyond the capacity."""
        return cast(MegaMoeConfig, choose(self.problem, self.target, num_tokens))

    def artifact(self, num_tokens: int) -> Artifact:
        return self.artifacts[self.config(num_tokens)]

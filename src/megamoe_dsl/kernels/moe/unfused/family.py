"""The stages of the unfused layer, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ....arch import SM90, SM100
from ....hardware.tensor_map import TensorMap
from ....hardware.tmem import TmemPlan
from ....layouts.region import Region
from ....problem import Problem
from ....target import Target
from ...kernel import Kernel
from ..config import MegaMoeConfig
from ..family import MegaMoeKernel
from ..layouts.symmetric import symmetric_buffer
from .arguments import BiasedStageArguments, ScaledStageArguments, StageArguments
from .config import StageConfig
from .results import stage_results
from .sm90 import MoeCombineConfig, MoeDispatchConfig, MoeFc1Config, MoeFc2Config, MoeSwigluConfig, Sm90Stage
from .sm100.config import (
    Sm100MoeCombineConfig,
    Sm100MoeDispatchConfig,
    Sm100MoeFc1Config,
    Sm100MoeFc2Config,
    Sm100MoeSwigluConfig,
)


class StageKernel(Kernel):
    """One stage: a launch on every rank, after that of the stage before."""

    problem = Problem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = MegaMoeKernel.recipes

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> StageConfig:
        """The configuration for the target's SMs and GPU.  Raises `ConfigError`."""
        kind: type[StageConfig] = self.configs[target.arch.name]
        return kind.choose(problem, num_tokens, num_sms=target.num_sms, gpu=target.gpu, **fields)

    def function(self, config: StageConfig) -> Callable[..., Any]:
        from . import kernel

        kernels = {"moe_dispatch": kernel.dispatch_kernel, "moe_swiglu": kernel.swiglu_kernel, "moe_combine": kernel.combine_kernel}
        if not config.linear:
            return kernels[self.name]
        if isinstance(config, Sm90Stage):
            return kernel.linear_kernel
        from .sm100.kernel import linear_pair_kernel

        return linear_pair_kernel

    def arguments_type(self, config: StageConfig) -> type[StageArguments | ScaledStageArguments | BiasedStageArguments]:
        """Linear stages have arguments of their own for biases, and for weights whose scales are not in their tiles."""
        if config.linear and config.problem.biases:
            return BiasedStageArguments
        return ScaledStageArguments if config.linear and isinstance(config, Sm90Stage) and not config.packed else StageArguments

    def label(self, config: StageConfig) -> str:
        """As of the fused kernel, and the stage."""
        return f"{MegaMoeKernel().label(config)}-{self.name.removeprefix('moe_')}"

    @property
    def sources(self) -> tuple[Any, ...]:
        """Roles and buffers are the fused kernel's."""
        return (*super().sources, *MegaMoeKernel().sources)

    def buffers(self, config: StageConfig) -> Mapping[str, Region]:
        """sym: the symmetric buffer of a rank; results: what stages leave for one another."""
        return {"sym": symmetric_buffer(config.problem, config.arch), "results": stage_results(config.problem)}

    def tensor_maps(self, config: StageConfig, addresses: Mapping[str, int]) -> list[TensorMap]:
        """Those of the fused kernel; `addresses` of sym and of the weights in kernel order."""
        return MegaMoeKernel().tensor_maps(config, addresses)


class MoeDispatchKernel(StageKernel):
    """Ranks tell each other what they send, and pull it into their pools."""

    name = "moe_dispatch"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeDispatchConfig, SM100.name: Sm100MoeDispatchConfig}
    resident = True


class LinearKernel(StageKernel):
    """A grouped GEMM over the pool."""

    def facts(self, config: StageConfig) -> list[tuple[str, object]]:
        tile = dict(MegaMoeKernel().facts(config))["tile"]
        return [("tile", tile), *super().facts(config), ("stages", config.num_stages)]

    def tmem(self, config: StageConfig) -> TmemPlan | None:
        return MegaMoeKernel().tmem(config)

    def registers(self, config: StageConfig) -> Mapping[str, int]:
        """Per thread of loaders and of math warps."""
        return {"loader": config.registers.loader, "epilogue": config.registers.epilogue}


class MoeFc1Kernel(LinearKernel):
    """Linear1 over the pool."""

    name = "moe_fc1"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeFc1Config, SM100.name: Sm100MoeFc1Config}


class MoeSwigluKernel(StageKernel):
    """SwiGLU over the pool, quantised."""

    name = "moe_swiglu"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeSwigluConfig, SM100.name: Sm100MoeSwigluConfig}


class MoeFc2Kernel(LinearKernel):
    """Linear2 over the pool."""

    name = "moe_fc2"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeFc2Config, SM100.name: Sm100MoeFc2Config}


class MoeCombineKernel(StageKernel):
    """Results back to the tokens' ranks, and their sums there."""

    name = "moe_combine"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeCombineConfig, SM100.name: Sm100MoeCombineConfig}
    resident = True


STAGES: tuple[StageKernel, ...] = (MoeDispatchKernel(), MoeFc1Kernel(), MoeSwigluKernel(), MoeFc2Kernel(), MoeCombineKernel())
"""In the order of their launches."""


def stage_configs(fused: MegaMoeConfig) -> tuple[StageConfig, ...]:
    """Of the stages that compute what this fused kernel does, with the same tile and pool, in the order of their launches."""
    return tuple(stage.configs[fused.arch.name].of(fused) for stage in STAGES)

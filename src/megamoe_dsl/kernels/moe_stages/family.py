"""The stages of the unfused layer, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...arch import SM90
from ...hardware.tensor_map import TensorMap
from ...layouts.region import Region
from ...problem import Problem, ProblemError
from ...target import Target
from ..kernel import Kernel
from ..mega_moe.config import MegaMoeConfig
from ..mega_moe.family import MegaMoeKernel
from ..mega_moe.layouts.symmetric import symmetric_buffer
from ..mega_moe.sm90.config import Sm90Config
from ..mega_moe.sm90.maps import tensor_maps
from .arguments import ScaledStageArguments, StageArguments
from .config import LinearConfig, MoeCombineConfig, MoeDispatchConfig, MoeFc1Config, MoeFc2Config, MoeSwigluConfig, StageConfig
from .results import stage_results


class StageKernel(Kernel):
    """One stage: a launch on every rank, after that of the stage before."""

    problem = Problem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {SM90.name: MegaMoeKernel.recipes[SM90.name]}

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> StageConfig:
        """The configuration for the target's SMs and GPU.  Raises `ConfigError`."""
        kind: type[StageConfig] = self.configs[target.arch.name]
        return kind.choose(problem, num_tokens, num_sms=target.num_sms, gpu=target.gpu, **fields)

    def launcher(self, config: StageConfig) -> Callable[..., Any]:
        """Named as the kernel; linear stages have one in common.  Imports the DSL."""
        from . import kernel

        if isinstance(config, LinearConfig):
            return kernel.moe_linear_packed if config.packed else kernel.moe_linear
        launcher: Callable[..., Any] = getattr(kernel, self.name)
        return launcher

    def arguments_type(self, config: StageConfig) -> type[StageArguments | ScaledStageArguments]:
        """Linear stages have arguments of their own for weights whose scales are not in their tiles."""
        return ScaledStageArguments if isinstance(config, LinearConfig) and not config.packed else StageArguments

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
        return tensor_maps(config, addresses["sym"], addresses)


class MoeDispatchKernel(StageKernel):
    """Ranks tell each other what they send, and pull it into their pools."""

    name = "moe_dispatch"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeDispatchConfig}
    resident = True


class LinearKernel(StageKernel):
    """A grouped GEMM over the pool."""

    def facts(self, config: StageConfig) -> list[tuple[str, object]]:
        """Tile, grid and ring."""
        columns = "tokens" if config.swap_ab else "weight rows"
        tile = f"256 weight rows x {config.block_m} tokens x 128 channels; {columns} are the wgmma's columns"
        return [("tile", tile), *super().facts(config), ("stages", config.num_stages)]

    def registers(self, config: StageConfig) -> Mapping[str, int]:
        """Per thread of loaders and of math warps."""
        return {"loader": config.registers.loader, "epilogue": config.registers.epilogue}


class MoeFc1Kernel(LinearKernel):
    """Linear1 over the pool."""

    name = "moe_fc1"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeFc1Config}


class MoeSwigluKernel(StageKernel):
    """SwiGLU over the pool, quantised."""

    name = "moe_swiglu"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeSwigluConfig}


class MoeFc2Kernel(LinearKernel):
    """Linear2 over the pool."""

    name = "moe_fc2"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeFc2Config}


class MoeCombineKernel(StageKernel):
    """Results back to the tokens' ranks, and their sums there."""

    name = "moe_combine"
    configs: ClassVar[Mapping[str, type[StageConfig]]] = {SM90.name: MoeCombineConfig}
    resident = True


STAGES: tuple[StageKernel, ...] = (MoeDispatchKernel(), MoeFc1Kernel(), MoeSwigluKernel(), MoeFc2Kernel(), MoeCombineKernel())
"""In the order of their launches."""


def stage_configs(fused: MegaMoeConfig) -> tuple[StageConfig, ...]:
    """Of the stages that compute what this fused kernel does, with the same tile and pool, in the order of their launches.

    Raises `ProblemError` for an architecture that has none."""
    if not isinstance(fused, Sm90Config):
        raise ProblemError("fused", False, f"True on {fused.arch}: stages are written for {SM90}")
    return tuple(stage.configs[fused.arch.name].of(fused) for stage in STAGES)

"""GEMMs that gather their rows, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...blocks.gemm.base_config import BaseGemmConfig
from ...blocks.gemm.gather.arguments import (
    FactorArguments,
    GatherGemmArguments,
    HiddenFactorArguments,
    StoringArguments,
    TraceArguments,
    with_parts,
)
from ...blocks.gemm.gather.config import GatherGemmConfig
from ...blocks.gemm.gather.maps import map_fields, map_names
from ...blocks.gemm.gather.problem import GatherGemmProblem
from ...blocks.gemm.gather.sm100.config import Sm100GatherConfig
from ...blocks.gemm.gather.sm100.maps import MAPS, pair_gather_map_fields
from ...hardware.map_fields import MapFields
from ...hardware.tensor_map import TensorMap
from ...layouts.region import Region
from ...layouts.stamps import trace_buffer
from ...sass.listing import Listing
from ...sass.measurer import Measure, Measurer
from ..moe.family import MegaMoeKernel
from .family import GemmKernel


class GatherGemmKernel(GemmKernel):
    """D = A x B over the rows of experts, which are gathered from tokens or sorted already."""

    name = "gather_gemm"
    problem = GatherGemmProblem
    configs: ClassVar[Mapping[str, type[BaseGemmConfig]]] = {"sm_90a": GatherGemmConfig, "sm_100a": Sm100GatherConfig}
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {arch: kind.recipes for arch, kind in configs.items()}

    def function(self, config: BaseGemmConfig) -> Callable[..., Any]:
        if isinstance(config, Sm100GatherConfig):
            from .sm100.gather_kernel import pair_gather_kernel

            return pair_gather_kernel
        from .gather_kernel import gather_gemm_kernel, sorted_gemm_kernel

        return gather_gemm_kernel if config.problem.gathers else sorted_gemm_kernel

    def arguments_type(self, config: BaseGemmConfig) -> type[GatherGemmArguments]:
        """With factors where the number formats have them, with an address of gate and up where they are stored, and of stamps."""
        assert isinstance(config, GatherGemmConfig | Sm100GatherConfig)
        problem = config.problem
        parts = {
            FactorArguments: problem.has_factors,
            HiddenFactorArguments: problem.hidden.factor,
            StoringArguments: problem.preactivations,
            TraceArguments: config.trace,
        }
        return with_parts(*(part for part, there in parts.items() if there))

    def buffers(self, config: BaseGemmConfig) -> Mapping[str, Region]:
        """trace: the stamps of all warps, if they leave any."""
        assert isinstance(config, GatherGemmConfig | Sm100GatherConfig)
        return {"trace": trace_buffer(config.num_sms, config.num_threads // 32)} if config.trace else {}

    def parameters(
        self, config: BaseGemmConfig, arguments: Mapping[str, int], encode: Callable[[TensorMap], bytes] = TensorMap.encode
    ) -> tuple[int | bytes, ...]:
        """As of a GEMM.  Raises `ConfigError` for more rows than the kernel counts."""
        if isinstance(config, Sm100GatherConfig):
            config.check_rows(arguments["m"])
        return super().parameters(config, arguments, encode)

    def maps(self, config: BaseGemmConfig, args: Any) -> list[MapFields]:
        """Fields of every tensor map, in the order of the kernel's parameters; `args` has those of its arguments."""
        if isinstance(config, Sm100GatherConfig):
            return pair_gather_map_fields(config, args)
        assert isinstance(config, GatherGemmConfig)
        return map_fields(config, args)

    def map_names(self, config: BaseGemmConfig) -> list[str]:
        """Of weights and D, and where TMA loads rows of these, too."""
        if isinstance(config, Sm100GatherConfig):
            return list(MAPS)
        assert isinstance(config, GatherGemmConfig)
        return list(map_names(config.problem))

    def label(self, config: BaseGemmConfig) -> str:
        """As of a packed GEMM, and where rows lie."""
        assert isinstance(config, GatherGemmConfig | Sm100GatherConfig)
        problem = config.problem
        more = [one for one in (problem.gate_up, "stored" if problem.preactivations else "", "traced" if config.trace else "") if one]
        return "-".join([super().label(config), problem.source, problem.result, *more])

    def facts(self, config: BaseGemmConfig) -> list[tuple[str, object]]:
        """As of a packed GEMM, who loads rows, and what consumers share."""
        assert isinstance(config, GatherGemmConfig | Sm100GatherConfig)
        consumers = f"{config.consumers}, which share rows of {config.shared_rows}" if config.shared_rows else "1"
        return [*super().facts(config), ("rows", config.row_loader), ("consumers", consumers)]

    def measures(self, config: BaseGemmConfig, listing: Listing) -> list[Measure]:
        from .gather_measures import measure_gather_gemm
        from .sm100.gather_measures import measure_pair_gather

        measure = measure_pair_gather if isinstance(config, Sm100GatherConfig) else measure_gather_gemm
        return measure(Measurer(config, listing))

    @property
    def sources(self) -> tuple[Any, ...]:
        """Roles are those of a GEMM, but for the loaders; the activation is the fused layer's."""
        return (*super().sources, *GemmKernel().sources, *MegaMoeKernel().sources)

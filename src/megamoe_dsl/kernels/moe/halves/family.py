"""The expert-parallel kernels, as the registry knows them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ....arch import SM90, SM100
from ....blocks.gemm.gather.sm100.config import Sm100GatherConfig
from ....hardware.map_fields import MapFields
from ....hardware.tmem import TmemPlan
from ....layouts.region import Region
from ....layouts.stamps import trace_buffer
from ....problem import Problem
from ....sass.listing import Listing
from ....sass.measurer import Measure
from ....target import Target
from ...gemm.family import GemmKernel
from ...gemm.gather_family import GatherGemmKernel
from ...kernel import Kernel
from .arguments import (
    DispatchGemmArguments,
    GemmCombineArguments,
    RoutingTablesArguments,
    TracedDispatchGemmArguments,
    TracedGemmCombineArguments,
)
from .config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from .gemm_arguments import combine_gemm_arguments, dispatch_gemm_arguments, gathering_arguments
from .layouts.symmetric import symmetric_buffer
from .sm100.config import Sm100DispatchGemmConfig, Sm100EpConfig, Sm100GemmCombineConfig
from .sm100.tables_config import Sm100RoutingTablesConfig
from .tables_config import RoutingTablesConfig

RECIPES_BY_ARCH = {SM90.name: EpConfig.recipes, SM100.name: Sm100EpConfig.recipes}
GEMM, GATHERING = GemmKernel(), GatherGemmKernel()


def gemm_family(config: EpConfig) -> GemmKernel:
    """That says which tensor maps a kernel takes."""
    return GATHERING if isinstance(config.gemm, Sm100GatherConfig) else GEMM


class EpKernel(Kernel):
    """What both have in common."""

    problem = Problem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = RECIPES_BY_ARCH
    resident = True

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> EpConfig:
        """The configuration for the target's SMs.  Raises `ConfigError`."""
        kind: type[EpConfig] = self.configs[target.arch.name]
        return kind.choose(problem, target, num_tokens, **fields)

    def label(self, config: EpConfig) -> str:
        """The kernel, shape, experts, top-k, ranks, most tokens of a rank, and the tile; number formats that are not the usual ones."""
        recipe = config.problem.recipe
        formats = "" if recipe == config.recipes[0] else f"-{recipe}"
        return f"{self.name.replace('_', '-')}-{config.problem.label}-m{config.block_m}n{config.block_n}{formats}"

    @property
    def sources(self) -> tuple[Any, ...]:
        """Loaders, main loops and epilogues are the GEMM's, rows move as in the fused layer."""
        from ..family import MegaMoeKernel

        return (*super().sources, *GEMM.sources, *GATHERING.sources, *MegaMoeKernel().sources)

    def buffers(self, config: EpConfig) -> Mapping[str, Region]:
        """sym: the symmetric buffer of a rank; trace: the stamps of all warps, if they leave any."""
        traced = {"trace": trace_buffer(config.num_sms, config.num_threads // 32)} if config.trace else {}
        return {"sym": symmetric_buffer(config.problem, config.keeps_rows), **traced}

    def facts(self, config: EpConfig) -> list[tuple[str, object]]:
        """Tile, order, grid, ring and registers."""
        order = ("order", f"tasks handed out at run time, {config.group_m} row blocks together")
        if isinstance(config, Sm100EpConfig):
            tile = f"{config.block_n} weight rows x {config.block_m} rows x {config.block_k} over two CTAs"
            return [("tile", tile), order, *super().facts(config), ("stages", config.num_stages)]
        return [
            ("tile", f"{config.block_m} x {config.block_n} x {config.gemm_problem.k_block} on {config.gemm.warpgroups} warpgroups"),
            order,
            *super().facts(config),
            ("stages", config.num_stages),
            ("register budgets", ", ".join(f"{group} {count}" for group, count in self.registers(config).items())),
        ]

    def registers(self, config: EpConfig) -> Mapping[str, int]:
        """Per thread of each group of warps; on SM100 they keep what they begin with."""
        if isinstance(config, Sm100EpConfig):
            return {}
        budget = config.registers
        return {"communication": budget.dispatch, "loader": budget.loader, "math": budget.epilogue}

    def measures(self, config: EpConfig, listing: Listing) -> list[Measure]:
        if not isinstance(config, Sm100EpConfig):
            return []
        return gemm_family(config).measures(config.gemm, listing)

    def tmem(self, config: EpConfig) -> TmemPlan | None:
        return config.tmem if isinstance(config, Sm100EpConfig) else None

    @abstractmethod
    def gemm_arguments(self, config: Any, args: Any) -> Any:
        """Those of its GEMM, from its own."""

    def maps(self, config: EpConfig, args: Any) -> Sequence[MapFields]:
        return gemm_family(config).maps(config.gemm, self.gemm_arguments(config, args))

    def map_names(self, config: EpConfig) -> Sequence[str]:
        return gemm_family(config).map_names(config.gemm)


class DispatchGroupedGemmKernel(EpKernel):
    """Tokens to the ranks of their experts, and Linear1 of them, in one launch."""

    name = "dispatch_grouped_gemm"
    configs: ClassVar[Mapping[str, type[EpConfig]]] = {SM90.name: DispatchGemmConfig, SM100.name: Sm100DispatchGemmConfig}

    def function(self, config: EpConfig) -> Callable[..., Any]:
        if isinstance(config, Sm100EpConfig):
            from .sm100.kernel import dispatch_gathering_pair_kernel, dispatch_pair_gemm_kernel

            return dispatch_gathering_pair_kernel if config.gathers else dispatch_pair_gemm_kernel
        from .kernel import dispatch_gemm_kernel

        return dispatch_gemm_kernel

    def arguments_type(self, config: EpConfig) -> type[DispatchGemmArguments]:
        """A traced kernel has one more."""
        return TracedDispatchGemmArguments if config.trace else DispatchGemmArguments

    def gemm_arguments(self, config: Any, args: Any) -> Any:
        """Linear1 of the rows that dispatch brings."""
        gathers = isinstance(config, Sm100EpConfig) and config.gathers
        return (gathering_arguments if gathers else dispatch_gemm_arguments)(config, args)


class GroupedGemmCombineKernel(EpKernel):
    """Linear2 of the received rows, and the sums of its results on the tokens' ranks, in one launch."""

    name = "grouped_gemm_combine"
    configs: ClassVar[Mapping[str, type[EpConfig]]] = {SM90.name: GemmCombineConfig, SM100.name: Sm100GemmCombineConfig}

    def function(self, config: EpConfig) -> Callable[..., Any]:
        if isinstance(config, Sm100EpConfig):
            from .sm100.kernel import pair_gemm_combine_kernel

            return pair_gemm_combine_kernel
        from .kernel import gemm_combine_kernel

        return gemm_combine_kernel

    def arguments_type(self, config: EpConfig) -> type[GemmCombineArguments]:
        """A traced kernel has one more."""
        return TracedGemmCombineArguments if config.trace else GemmCombineArguments

    def gemm_arguments(self, config: Any, args: Any) -> Any:
        """Linear2 of the caller's activations."""
        return combine_gemm_arguments(config, args)


class RoutingTablesKernel(Kernel):
    """Where every token goes, and who fetches it, from the experts of all ranks' tokens: what dispatch and combine read."""

    name = "routing_tables"
    problem = Problem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = RECIPES_BY_ARCH
    configs: ClassVar[Mapping[str, type[RoutingTablesConfig]]] = {SM90.name: RoutingTablesConfig, SM100.name: Sm100RoutingTablesConfig}

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> RoutingTablesConfig:
        """The same for every target.  Raises `ConfigError`."""
        return RoutingTablesConfig.choose(problem, target, num_tokens, **fields)

    def label(self, config: RoutingTablesConfig) -> str:
        """The kernel, shape, experts, top-k, ranks and most tokens of a rank."""
        return f"{self.name.replace('_', '-')}-{config.problem.label}"

    def buffers(self, config: RoutingTablesConfig) -> Mapping[str, Region]:
        """sym: the symmetric buffer of a rank."""
        return {"sym": symmetric_buffer(config.problem)}

    def function(self, config: RoutingTablesConfig) -> Callable[..., Any]:
        from .tables import routing_tables_kernel

        return routing_tables_kernel

    def arguments_type(self, config: RoutingTablesConfig) -> type[RoutingTablesArguments]:
        """The same for all configurations."""
        return RoutingTablesArguments


EP_KERNELS: tuple[EpKernel, ...] = (DispatchGroupedGemmKernel(), GroupedGemmCombineKernel())
"""In the order of their launches."""

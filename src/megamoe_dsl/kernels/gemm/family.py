"""FP8 GEMMs, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from ...hardware.tensor_map import TensorMap
from ...sass.listing import Listing
from ...sass.measurer import Measure, Measurer
from ...target import Target
from ..argument_spec import ArgumentSpec
from ..kernel import Kernel
from ..work import Work
from .arguments import GemmArguments
from .config import GemmConfig
from .maps import GemmMap, tensor_maps
from .problem import GemmProblem
from .work import GemmLoad, count_work


class GemmKernel(Kernel):
    """D = A x B of E4M3 with FP32 block scales, dense or grouped."""

    name = "gemm"
    problem = GemmProblem
    configs: ClassVar[Mapping[str, type[GemmConfig]]] = {"sm_90a": GemmConfig}
    early = True

    def choose(self, problem: GemmProblem, target: Target, num_tokens: int, **fields: Any) -> GemmConfig:
        """The configuration for `num_tokens` rows of A.  Raises `ConfigError`."""
        return GemmConfig.choose(problem, target, num_tokens, **fields)

    def launcher(self, config: GemmConfig) -> Callable[..., Any]:
        """`gemm`.  Imports the DSL."""
        from .kernel import gemm

        return gemm

    def arguments_type(self, config: GemmConfig) -> type[GemmArguments]:
        """The same for all configurations."""
        return GemmArguments

    def parameters(
        self, config: GemmConfig, arguments: Mapping[str, int], encode: Callable[[TensorMap], bytes] = TensorMap.encode
    ) -> tuple[int | bytes, ...]:
        """The tensor maps, then the arguments.  Raises ValueError for an address or a stride that TMA does not take."""
        values = self.arguments(config).pack(**arguments)
        return (*(encode(one) for one in tensor_maps(config, SimpleNamespace(**arguments))), *values)

    def parameter_spec(self, config: GemmConfig) -> ArgumentSpec:
        """The tensor maps, then the arguments."""
        return ArgumentSpec((*((f"{one.name.lower()}_map", "TensorMap") for one in GemmMap), *self.arguments(config).arguments))

    def label(self, config: GemmConfig) -> str:
        """Shape, kind and tile."""
        p = config.problem
        groups = f"-{p.kind}{p.num_groups}" if p.has_groups else ""
        output = f"-{p.output}{'+' if p.accumulate else ''}" if p.output != "bf16" else ""
        return f"{p.n}x{p.k}{groups}{output}-m{config.block_m}n{config.block_n}"

    def facts(self, config: GemmConfig) -> list[tuple[str, object]]:
        """Tile, who multiplies it, order, grid, ring and registers."""
        tile, budget = config.tile, config.registers
        side = "rows of A are the wgmma's columns" if tile.swap_ab else "rows of A are its rows"
        dealt = "dealt at run time" if config.dealt else "in turn"
        return [
            ("tile", f"{tile.m} x {tile.n} x 128 on {tile.warpgroups} warpgroups; {side}"),
            ("K blocks in the tensor core", config.ahead),
            *((("K", f"a half for each CTA of a cluster, at most {config.most_k_blocks} blocks"),) if config.split_k else ()),
            ("order", f"{dealt}, {config.group_m} row blocks together"),
            *super().facts(config),
            ("stages", config.num_stages),
            ("register budgets", f"loader {budget.loader}, math {budget.math}"),
        ]

    def work(self, problem: GemmProblem, load: GemmLoad) -> Work:
        """The least that a launch has to do."""
        return count_work(problem, load)

    def measures(self, config: GemmConfig, listing: Listing) -> list[Measure]:
        """Of the roles.  Raises `InspectionError`."""
        from .measures import measure_gemm

        return measure_gemm(Measurer(config, listing))

    def registers(self, config: GemmConfig) -> Mapping[str, int]:
        """Per thread of the loaders' warpgroup and of those that multiply."""
        return config.registers._asdict()

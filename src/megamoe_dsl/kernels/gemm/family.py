"""GEMMs, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...blocks.gemm.arguments import FactoredGemmArguments, GemmArguments
from ...blocks.gemm.base_config import BaseGemmConfig
from ...blocks.gemm.config import GemmConfig
from ...blocks.gemm.decoding.maps import DecodingMap, decoding_map_fields
from ...blocks.gemm.maps import GemmMap, map_fields
from ...blocks.gemm.problem import GEMM_RECIPES, GemmProblem
from ...blocks.gemm.sm100.config import Sm100GemmConfig
from ...blocks.gemm.sm100.maps import PairGemmMap, pair_map_fields
from ...hardware.map_fields import MapFields
from ...hardware.tmem import TmemPlan
from ...sass.listing import Listing
from ...sass.measurer import Measure, Measurer
from ...target import Target
from ..kernel import Kernel
from ..work import Work
from .work import GemmLoad, count_work


class GemmKernel(Kernel):
    """D = A x B of BF16 numbers, or of block-scaled ones of 8 and 4 bits, dense or grouped."""

    name = "gemm"
    problem = GemmProblem
    configs: ClassVar[Mapping[str, type[BaseGemmConfig]]] = {"sm_90a": GemmConfig, "sm_100a": Sm100GemmConfig}
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {arch: kind.recipes for arch, kind in configs.items()}
    early = True

    def choose(self, problem: GemmProblem, target: Target, num_tokens: int, **fields: Any) -> BaseGemmConfig:
        """The configuration for `num_tokens` rows of A.  Raises `ConfigError`."""
        return self.configs[target.arch.name].choose(problem, target, num_tokens, **fields)

    def function(self, config: BaseGemmConfig) -> Callable[..., Any]:
        if isinstance(config, Sm100GemmConfig):
            from .sm100.kernel import pair_gemm_kernel

            return pair_gemm_kernel
        if config.problem.decodes:
            from .decoding_kernel import decoding_gemm_kernel

            return decoding_gemm_kernel
        from .kernel import gemm_kernel

        return gemm_kernel

    def arguments_type(self, config: BaseGemmConfig) -> type[GemmArguments]:
        """With factors where the number formats have them."""
        return FactoredGemmArguments if config.problem.has_factors else GemmArguments

    def maps(self, config: BaseGemmConfig, args: Any) -> list[MapFields]:
        """Fields of every tensor map, in the order of the kernel's parameters; `args` has those of its arguments."""
        if isinstance(config, Sm100GemmConfig):
            return pair_map_fields(config, args)
        assert isinstance(config, GemmConfig)
        return (decoding_map_fields if config.problem.decodes else map_fields)(config, args)

    def map_names(self, config: BaseGemmConfig) -> list[str]:
        if isinstance(config, Sm100GemmConfig):
            return [one.name.lower() for one in PairGemmMap]
        return [one.name.lower() for one in (DecodingMap if config.problem.decodes else GemmMap)]

    def label(self, config: BaseGemmConfig) -> str:
        p = config.problem
        groups = f"-{p.kind}{p.num_groups}" if p.has_groups else ""
        output = f"-{p.output}{'+' if p.accumulate else ''}" if p.output != "bf16" else ""
        tile = f"n{config.block_n}" if isinstance(config, GemmConfig) else ""
        tile += "" if p.recipe == GEMM_RECIPES[0] else f"-{p.recipe}"
        return f"{p.n}x{p.k}{groups}{output}-m{config.block_m}{tile}"

    def facts(self, config: BaseGemmConfig) -> list[tuple[str, object]]:
        """Tile, who multiplies it, order, grid, ring and registers."""
        dealt = "dealt at run time" if config.dealt else "in turn"
        order = ("order", f"{dealt}, {config.group_m} row blocks together")
        if isinstance(config, Sm100GemmConfig):
            shape = f"{config.block_n} rows of B x {config.block_m} rows of A x {config.block_k} over two CTAs"
            epilogue = ("epilogue", f"{config.epilogue_warps} warps")
            return [("tile", shape), epilogue, order, *super().facts(config), ("stages", config.num_stages)]
        assert isinstance(config, GemmConfig)
        tile = config.tile
        side = "rows of A are the wgmma's columns" if tile.swap_ab else "rows of A are its rows"
        return [
            ("tile", f"{tile.m} x {tile.n} x {config.problem.k_block} on {tile.warpgroups} warpgroups; {side}"),
            ("K blocks in the tensor core", config.ahead if tile.scaled else "2, whose sums stay there"),
            *((("K", f"a half for each CTA of a cluster, at most {config.most_k_blocks} blocks"),) if config.split_k else ()),
            order,
            *super().facts(config),
            ("stages", config.num_stages),
            *((("K blocks of B asked for at once", config.burst),) if config.burst > 1 else ()),
            ("register budgets", ", ".join(f"{group} {count}" for group, count in self.registers(config).items())),
        ]

    def work(self, problem: GemmProblem, load: GemmLoad) -> Work:
        """The least that a launch has to do."""
        return count_work(problem, load)

    def measures(self, config: BaseGemmConfig, listing: Listing) -> list[Measure]:
        from .measures import measure_gemm
        from .sm100.measures import measure_pair_gemm

        measure = measure_pair_gemm if isinstance(config, Sm100GemmConfig) else measure_gemm
        return measure(Measurer(config, listing))

    def registers(self, config: BaseGemmConfig) -> Mapping[str, int]:
        """Per thread of the loaders' warpgroup, of those that multiply and of one that decodes; on SM100 they keep what they begin with."""
        given = config.registers._asdict() if isinstance(config, GemmConfig) else {}
        return {group: count for group, count in given.items() if count}

    def tmem(self, config: BaseGemmConfig) -> TmemPlan | None:
        return config.tmem if isinstance(config, Sm100GemmConfig) else None

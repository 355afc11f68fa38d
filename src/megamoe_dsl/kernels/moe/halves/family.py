"""The expert-parallel kernels, as the registry knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ....problem import Problem
from ....target import Target
from ....tuned import EpEntry, tuned_table
from ...kernel import Kernel, Measures, with_fields
from ...measures import measure_pair_gemm
from ..arguments import OVER_RANKS, Arguments
from .config import DispatchGemmConfig, EpConfig, GemmCombineConfig, RoutingTablesConfig
from .gemm_part import PARTS, STORED

RECIPES_BY_ARCH = {name: part.recipes for name, part in PARTS.items()}


def tuned_fields(half: str, problem: Problem, num_tokens: int, gpu: str | None) -> Mapping[str, Any]:
    """Those of the measured point of this shape that is nearest, within a factor of two of the tokens; none where nobody has measured."""
    expected = problem.expected_tokens_per_expert(max(num_tokens, 1))
    near: list[Any] = tuned_table(gpu, EpEntry).near(EpEntry.share_of(problem), expected) if gpu else []
    return getattr(near[0], half) if near else {}  # type: ignore[no-any-return]


class EpKernel(Kernel):
    """Half of a layer in one launch: tokens to the ranks of their experts and Linear1 of them, or Linear2 of the received rows and the sums
    of its results on the tokens' ranks."""

    problem = Problem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = RECIPES_BY_ARCH
    measured: ClassVar[Mapping[str, Measures]] = {"sm_100a": measure_pair_gemm}
    resident = True
    code = "kernel.half_kernel"

    def __init__(self, name: str, config: type[EpConfig], *arguments: str) -> None:
        self.name, self.configs, self.own = name, dict.fromkeys(PARTS, config), arguments  # type: ignore[misc]

    def arguments_type(self, config: EpConfig) -> type[Any]:
        return with_fields(Arguments, *OVER_RANKS, *self.own, *config.row_arguments, trace=config.trace)

    def choose(self, problem: Problem, target: Target, num_tokens: int, **fields: Any) -> EpConfig:
        """What the architecture says, and what was faster at a measured point near this one; `fields` replace it.  Raises `ConfigError`."""
        problem.check_num_tokens(num_tokens)
        kind, part, num_sms = self.configs[target.arch.name], PARTS[target.arch.name], fields.get("num_sms", target.num_sms)
        tuned = tuned_fields(kind.launch.name.lower(), problem, num_tokens, target.gpu)
        chosen = {"num_sms": num_sms, "cluster": part.clusters_of(num_sms), **tuned}
        if fields.get("gate_up", STORED) != STORED:
            chosen |= part.activated_tile
        return super().choose(problem, target, num_tokens, **{**chosen, **fields})  # type: ignore[no-any-return]

    def label(self, config: EpConfig) -> str:
        recipe = config.problem.recipe
        formats = "" if recipe == config.part.recipes[0] else f"-{recipe}"
        return f"{self.name.replace('_', '-')}-{config.problem.label}-m{config.block_m}n{config.block_n}{formats}"


class RoutingTablesKernel(Kernel):
    """Where every token goes, and who fetches it, from the experts of all ranks' tokens: what dispatch and combine read."""

    name = "routing_tables"
    resident = True
    code = "tables.routing_tables_kernel"
    takes_arguments = with_fields(Arguments, *OVER_RANKS, "num_tokens")
    problem = Problem
    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = RECIPES_BY_ARCH
    configs: ClassVar[Mapping[str, type[RoutingTablesConfig]]] = dict.fromkeys(PARTS, RoutingTablesConfig)

    def label(self, config: RoutingTablesConfig) -> str:
        return f"{self.name.replace('_', '-')}-{config.problem.label}"


EP_KERNELS = (
    EpKernel("dispatch_grouped_gemm", DispatchGemmConfig, "weights", "weights_sf", "out"),
    EpKernel("grouped_gemm_combine", GemmCombineConfig, "acts", "acts_sf", "weights", "weights_sf", "y", "num_tokens"),
)
"""In the order of their launches."""

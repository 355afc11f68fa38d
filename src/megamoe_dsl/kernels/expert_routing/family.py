"""Routing and sums, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...layouts.region import Region
from ...target import Target
from ..kernel import Kernel
from .arguments import FactoredRouteArguments, PlacedExpertsArguments, RouteArguments, SumArguments, TopExpertsArguments
from .config import MOST_SORTERS, ROUTED, RouteConfig, SumConfig, TokensConfig, TopExpertsConfig
from .problem import RoutingProblem, TopExpertsProblem


class RoutingKernel(Kernel):
    """A kernel over the tokens of one GPU."""

    problem: ClassVar[type[Any]] = RoutingProblem
    early = True

    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> TokensConfig:
        """A CTA for each of the target's SMs, whatever the number of tokens; `fields` replace what is chosen.  Raises `ConfigError`."""
        problem.check_tokens(num_tokens)
        kind: type[TokensConfig] = self.configs[target.arch.name]
        return kind(problem, **{"num_sms": target.num_sms, "arch_name": target.arch.name, **fields})

    def label(self, config: TokensConfig) -> str:
        return f"{config.problem.hidden}-e{config.problem.num_experts}-k{config.problem.topk}-{self.name}"


class TopExpertsKernel(RoutingKernel):
    """The experts of each token and their weights, from a router's logits."""

    name = "top_experts"
    problem = TopExpertsProblem
    configs: ClassVar[Mapping[str, type[TopExpertsConfig]]] = dict.fromkeys(ROUTED, TopExpertsConfig)

    def function(self, config: TopExpertsConfig) -> Callable[..., Any]:
        from .top_experts import top_experts_kernel

        return top_experts_kernel

    def label(self, config: TokensConfig) -> str:
        return f"e{config.problem.num_experts}-k{config.problem.topk}-{config.problem.scores}-{self.name}"

    def arguments_type(self, config: TopExpertsConfig) -> type[TopExpertsArguments]:
        return PlacedExpertsArguments if config.problem.hashed or config.problem.replicas else TopExpertsArguments


class RouteKernel(RoutingKernel):
    """Tokens, BF16, quantized, and their slots sorted by expert: counts, offsets, and where each row comes from."""

    name = "route"
    resident = True
    configs: ClassVar[Mapping[str, type[RouteConfig]]] = dict.fromkeys(ROUTED, RouteConfig)

    def function(self, config: RouteConfig) -> Callable[..., Any]:
        from .route import route_kernel

        return route_kernel

    def arguments_type(self, config: RouteConfig) -> type[RouteArguments]:
        return FactoredRouteArguments if config.problem.formats.activations.factor else RouteArguments

    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> TokensConfig:
        """A quarter of the SMs may sort."""
        sorters = max(1, min(MOST_SORTERS, target.num_sms // 4))
        return super().choose(problem, target, num_tokens, **{"sorters": sorters, **fields})

    def smem(self, config: RouteConfig) -> Region:
        return config.region


class SumKernel(RoutingKernel):
    """Sums the rows of each token's experts, each times its weight."""

    name = "topk_sum"
    configs: ClassVar[Mapping[str, type[SumConfig]]] = dict.fromkeys(ROUTED, SumConfig)

    def function(self, config: SumConfig) -> Callable[..., Any]:
        from .topk_sum import topk_sum_kernel

        return topk_sum_kernel

    def arguments_type(self, config: SumConfig) -> type[SumArguments]:
        return SumArguments

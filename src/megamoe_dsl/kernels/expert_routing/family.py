"""Routing and sums, as the registry knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...layouts.region import Region
from ...target import Target
from ..kernel import Kernel
from .arguments import (
    FactoredRouteArguments,
    PlacedExpertsArguments,
    QuantizeArguments,
    RouteArguments,
    SumArguments,
    TopExpertsArguments,
    WeightArguments,
)
from .config import MOST_SORTERS, ROUTED, RouteConfig, TokensConfig
from .problem import QuantizeProblem, QuantizeWeightsProblem, RoutingProblem, SumProblem, TopExpertsProblem

CTAS_PER_SM = 4  # that quantize both ways


class RoutingKernel(Kernel):
    """A kernel over the tokens of one GPU."""

    configs: ClassVar[Mapping[str, type[TokensConfig]]] = dict.fromkeys(ROUTED, TokensConfig)
    early = True

    def smem(self, config: Any) -> Region | None:
        return config.region  # type: ignore[no-any-return]

    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> TokensConfig:
        """A CTA for each of the target's SMs, whatever the number of tokens; `fields` replace what is chosen.  Raises `ConfigError`."""
        problem.check_tokens(num_tokens)
        return self.configs[target.arch.name](problem, **{"num_sms": target.num_sms, "arch_name": target.arch.name, **fields})


class TopExpertsKernel(RoutingKernel):
    """The experts of each token and their weights, from a router's logits."""

    name = "top_experts"
    problem = TopExpertsProblem
    code = "top_experts.top_experts_kernel"

    def label(self, config: Any) -> str:
        return f"e{config.problem.num_experts}-k{config.problem.topk}-{config.problem.scores}-{self.name}"

    def arguments_type(self, config: Any) -> type[TopExpertsArguments]:
        return PlacedExpertsArguments if config.problem.hashed or config.problem.replicas else TopExpertsArguments


class RouteKernel(RoutingKernel):
    """Tokens, BF16, quantized, and their slots sorted by expert: counts, offsets, and where each row comes from."""

    name = "route"
    problem = RoutingProblem
    resident = True
    configs: ClassVar[Mapping[str, type[RouteConfig]]] = dict.fromkeys(ROUTED, RouteConfig)
    code = "route.route_kernel"

    def arguments_type(self, config: RouteConfig) -> type[RouteArguments]:
        return FactoredRouteArguments if config.problem.formats.activations.factor else RouteArguments

    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> TokensConfig:
        sorters = max(1, min(MOST_SORTERS, target.num_sms // 4))
        return super().choose(problem, target, num_tokens, **{"sorters": sorters, **fields})

    def label(self, config: RouteConfig) -> str:
        return f"{config.problem.hidden}-e{config.problem.num_experts}-k{config.problem.topk}-{self.name}"


class SumKernel(RoutingKernel):
    """Sums the rows of each token's experts, each times its weight."""

    name = "topk_sum"
    problem = SumProblem
    takes_arguments = SumArguments
    code = "topk_sum.topk_sum_kernel"

    def label(self, config: Any) -> str:
        return f"{config.problem.hidden}-k{config.problem.topk}-{self.name}"


class QuantizeBothKernel(RoutingKernel):
    """Rows of BF16 in E4M3 along rows and along columns, in one pass."""

    name = "quantize_both"
    problem = QuantizeProblem
    takes_arguments = QuantizeArguments
    code = "quantize_both.quantize_both_kernel"

    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> TokensConfig:
        return super().choose(problem, target, num_tokens, **{"num_sms": CTAS_PER_SM * target.num_sms, **fields})

    def label(self, config: Any) -> str:
        return f"{config.problem.hidden}{'-gathered' * config.problem.gathered}{'-columns' * (not config.problem.rows)}-{self.name}"


class QuantizeWeightsKernel(QuantizeBothKernel):
    """Matrices of BF16 in E4M3 with a scale for 128 x 128, as they lie or transposed."""

    name = "quantize_weights"
    problem = QuantizeWeightsProblem  # type: ignore[assignment]
    code = "quantize_weights.quantize_weights_kernel"

    def arguments_type(self, config: TokensConfig) -> type[WeightArguments]:  # type: ignore[override]
        return WeightArguments

    def label(self, config: Any) -> str:
        return f"{config.problem.n}-{config.problem.k}{'-transposed' * config.problem.transposed}-{self.name}"

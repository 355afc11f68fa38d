"""Routing and sums, as the registry knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...target import Target
from ..kernel import Kernel, with_fields
from .arguments import QuantizeArguments, RouteArguments, SumArguments, TopExpertsArguments, WeightArguments
from .config import MOST_SORTERS, ROUTED, RouteConfig, TokensConfig
from .problem import QuantizeProblem, QuantizeWeightsProblem, RoutingProblem, SumProblem, TopExpertsProblem

CTAS_PER_SM = 4  # that quantize both ways
OfProblem = Callable[[Any], Any]


class RoutingKernel(Kernel):
    """A kernel over the tokens of one GPU: `NAME_kernel` of the module that has its name."""

    configs: ClassVar[Mapping[str, type[TokensConfig]]] = dict.fromkeys(ROUTED, TokensConfig)
    early = True

    def __init__(self, name: str, problem: type[Any], arguments: OfProblem, label: OfProblem, per_sm: int = 1) -> None:
        """`arguments` and `label` of a problem; so many CTAs for each of a target's SMs."""
        self.name, self.problem, self.per_sm = name, problem, per_sm  # type: ignore[misc]
        self.code, self.arguments_of, self.label_of = f"{name}.{name}_kernel", arguments, label  # type: ignore[misc]

    def arguments_type(self, config: Any) -> type[Any]:
        return self.arguments_of(config.problem)  # type: ignore[no-any-return]

    def label(self, config: Any) -> str:
        return f"{self.label_of(config.problem)}-{self.name}"


class RouteKernel(RoutingKernel):
    """`route`: its sorting CTAs wait for one another, so all CTAs must be resident."""

    configs: ClassVar[Mapping[str, type[RouteConfig]]] = dict.fromkeys(ROUTED, RouteConfig)
    resident = True

    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> RouteConfig:
        sorters = max(1, min(MOST_SORTERS, target.num_sms // 4))
        return super().choose(problem, target, num_tokens, **{"sorters": sorters, **fields})  # type: ignore[no-any-return]


PLACES = "token_ids", "hash_table", "replicas", "hash_rows", "replica_shift"
TOP_EXPERTS = RoutingKernel(  # the experts of each token and their weights, from a router's logits
    "top_experts",
    TopExpertsProblem,
    lambda p: with_fields(TopExpertsArguments, **dict.fromkeys(PLACES, p.hashed or p.replicas)),
    lambda p: f"e{p.num_experts}-k{p.topk}-{p.scores}",
)
ROUTING_KERNELS = (
    RouteKernel(  # quantizes BF16 tokens and sorts their slots by expert: counts, offsets, and the token of each row
        "route",
        RoutingProblem,
        lambda p: with_fields(RouteArguments, factor=p.formats.activations.factor),
        lambda p: f"{p.hidden}-e{p.num_experts}-k{p.topk}",
    ),
    # the weighted sum of the rows of each token's experts
    RoutingKernel("topk_sum", SumProblem, lambda p: SumArguments, lambda p: f"{p.hidden}-k{p.topk}"),
    RoutingKernel(  # quantizes BF16 rows to E4M3 along rows and along columns, in one pass
        "quantize_both",
        QuantizeProblem,
        lambda p: QuantizeArguments,
        lambda p: f"{p.hidden}{'-gathered' * p.gathered}{'-columns' * (not p.rows)}{'-rows' * (not p.columns)}",
        CTAS_PER_SM,
    ),
    RoutingKernel(  # quantizes BF16 matrices to E4M3 with a scale for 128 x 128, transposed or not
        "quantize_weights",
        QuantizeWeightsProblem,
        lambda p: WeightArguments,
        lambda p: f"{p.n}-{p.k}{'-transposed' * p.transposed}",
        CTAS_PER_SM,
    ),
)

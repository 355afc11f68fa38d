"""A MoE layer on one GPU as four launches: tokens quantised and routed, two GEMMs over the rows of experts, and the sum of each token's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...activation import SILU
from ...problem import ProblemError
from ...target import Target
from ..gather_gemm.config import GatherGemmConfig
from ..gather_gemm.problem import E4M3, GATE_FIRST, GATE_UP, GatherGemmProblem
from ..gemm.base_config import BaseGemmConfig
from ..gemm.family import GemmKernel
from ..gemm.problem import PACKED, GemmProblem
from .config import RouteConfig, SumConfig
from .problem import RoutingProblem


class LayerConfigs(NamedTuple):
    """Of the four launches, in order."""

    route: RouteConfig
    fc1: GatherGemmConfig
    fc2: BaseGemmConfig
    total: SumConfig


@dataclass(frozen=True)
class ExpertLayer:
    """y[t] = sum over a token's experts e of weight * W2[e] (activation(W1[e] x[t])).

    hidden        channels of a token, a multiple of 128
    intermediate  channels between the two linears, a multiple of 128
    num_experts   at most 1024, all on this GPU
    topk          experts of a token
    gate_up       how rows of W1 are gate and up: gate_first, up_first, interleaved
    activation    of gate and up (activation.py)

    Raises `ProblemError`, which names field, value and what is allowed.
    """

    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    gate_up: str = GATE_FIRST
    activation: str = SILU

    def __post_init__(self) -> None:
        if self.gate_up not in GATE_UP[1:]:
            raise ProblemError("gate_up", self.gate_up, "one of " + ", ".join(GATE_UP[1:]))
        _ = self.routing, self.fc1, self.fc2  # each checks what it is of

    @property
    def routing(self) -> RoutingProblem:
        """Of the first launch and of the last."""
        return RoutingProblem(self.hidden, self.num_experts, self.topk)

    @property
    def fc1(self) -> GatherGemmProblem:
        """Rows gathered from the tokens; gate and up activated, sorted and packed."""
        n, experts = 2 * self.intermediate, self.num_experts
        return GatherGemmProblem(n, self.hidden, num_groups=experts, output=E4M3, gate_up=self.gate_up, activation=self.activation)

    @property
    def fc2(self) -> GemmProblem:
        """Rows as Linear1 leaves them."""
        return GemmProblem(self.hidden, self.intermediate, PACKED, self.num_experts)

    def configs(self, target: Target, tokens: int, **fc1: Any) -> LayerConfigs:
        """For so many tokens; `fc1` are fields of Linear1's.  Raises `ProblemError` and `ConfigError`."""
        rows = self.routing.check_tokens(tokens) * self.topk
        return LayerConfigs(
            RouteConfig.choose(self.routing, target),
            GatherGemmConfig.choose(self.fc1, target, rows, **fc1),
            GemmKernel().choose(self.fc2, target, rows),
            SumConfig.choose(self.routing, target),
        )

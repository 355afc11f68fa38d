"""Inputs of a layer, all ranks at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.reference import Accumulate, MoeResult, error_bound, mega_moe_stages, sample_inputs


@dataclass(frozen=True)
class Case:
    """Inputs of a layer, one list entry per rank; fields as the arguments of `reference.mega_moe`.

    Attributes:
        exact: any FP32 accumulation order gives the reference's bits.
    """

    problem: Problem
    x: list[torch.Tensor]
    x_sf: list[torch.Tensor]
    topk_idx: list[torch.Tensor]
    topk_weights: list[torch.Tensor]
    weights: list[ExpertWeights] = field(repr=False)
    exact: bool

    def reference(self, accumulate: Accumulate = torch.float64) -> MoeResult:
        """The oracle's output and intermediates (`reference.mega_moe_stages`)."""
        return mega_moe_stages(self.problem, self.x, self.x_sf, self.topk_idx, self.topk_weights, self.weights, accumulate)

    def bound(self, rigorous: bool = False) -> list[torch.Tensor]:
        """Per rank float64 [T_r, H]: zeros for an exact case, else `reference.error_bound`."""
        if self.exact:
            return [torch.zeros(len(x), self.problem.hidden, dtype=torch.float64, device=x.device) for x in self.x]
        return error_bound(self.problem, self.x, self.x_sf, self.topk_idx, self.topk_weights, self.weights, rigorous)

    def to(self, device: torch.device | str) -> "Case":
        """The same case with all tensors on `device`."""

        def moved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            return [one.to(device) for one in tensors]

        weights = [one.map(lambda tensor: tensor.to(device)) for one in self.weights]
        x, x_sf, topk_idx, topk_weights = moved(self.x), moved(self.x_sf), moved(self.topk_idx), moved(self.topk_weights)
        return Case(self.problem, x, x_sf, topk_idx, topk_weights, weights, self.exact)

    def sample(self, tokens: Sequence[torch.Tensor]) -> "Case":
        """The case of the rows `tokens` of every rank (int64 [n_r]), whose results do not depend on the other rows."""
        chosen = sample_inputs(self.x, self.x_sf, self.topk_idx, self.topk_weights, tokens)
        return Case(self.problem, *chosen, self.weights, self.exact)

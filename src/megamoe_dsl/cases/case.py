"""Inputs of a layer, all ranks at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from megamoe_dsl.reference import Accumulate, LayerInputs, MoeResult, error_bound, mega_moe_stages


@dataclass(frozen=True)
class Case(LayerInputs):
    """Inputs of a layer with what it should give.

    exact  any FP32 accumulation order gives the reference's bits
    """

    exact: bool

    def reference(self, accumulate: Accumulate = torch.float64) -> MoeResult:
        return mega_moe_stages(self, accumulate)

    def bound(self, rigorous: bool = False) -> list[torch.Tensor]:
        """Per rank float64 [T_r, H]: zeros for an exact case, else `reference.error_bound`."""
        if self.exact:
            return [torch.zeros(len(x), self.problem.hidden, dtype=torch.float64, device=x.device) for x in self.x]
        return error_bound(self, rigorous)

    def to(self, device: torch.device | str) -> Case:
        tensors: dict[str, Any] = {
            name: [one.to(device) for one in getattr(self, name)] for name in ("x", "x_sf", "topk_idx", "topk_weights")
        }
        return replace(self, **tensors, weights=[one.map(lambda tensor: tensor.to(device)) for one in self.weights])

"""ScatterMoE's layer with its gradients, by the Triton kernels of a folder with its sources (github.com/shawntan/scattermoe 47b5e15).

Its linears are called as its own gated layer calls them: the first gathers tokens, the second scatters rows to slots and weighs them in the
type of rows, BF16.  Slots are sorted by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from baselines.site import import_from

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def scattermoe_layer(site: Path) -> Layer:
    """y of x, W1 with gate first, W2, chosen experts, and their weights.  Raises `ImportError` where the folder lacks something."""
    linear = import_from("scattermoe.parallel_experts", site).parallel_linear

    def run(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        experts, slots = idx.flatten().sort()
        ends = torch.searchsorted(experts, torch.arange(len(w1), device=x.device), right=True)
        routing = experts, slots, ends
        gate, up = linear(x, w1.mT, idx.shape[1], *routing, grouped_out=True).chunk(2, dim=1)
        activated = torch.nn.functional.silu(gate) * up
        y: torch.Tensor = linear(activated, w2.mT, 1, *routing, gates=weights.to(x.dtype), grouped_in=True)
        return y

    return run

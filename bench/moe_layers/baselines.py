"""The same layer by torch on the same tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers.other_way import Launch, OtherWay

TORCH_LAYER = "torch bf16"


def torch_top_experts(logits: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of float32 logits."""
    chosen = logits.topk(topk, dim=1)
    return chosen.indices, chosen.values.softmax(dim=1)


def torch_layer(call: ExpertCall, w1: torch.Tensor, w2: torch.Tensor) -> Launch:
    """BF16 by torch alone: slots sorted, rows gathered, `_grouped_mm` twice, and each token's rows weighted and summed."""
    grouped: Any = torch._grouped_mm
    layer, x = call.layer, call.x
    first, second = w1.transpose(1, 2), w2.transpose(1, 2)

    def run() -> torch.Tensor:
        experts, order = call.topk_idx.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(layer.num_experts, device=x.device), right=True).int()
        gate, up = grouped(x[order // layer.topk], first, offs=ends).chunk(2, dim=1)
        rows = grouped(functional.silu(gate) * up, second, offs=ends)
        y = torch.empty_like(rows)
        y[order] = rows
        return (y.view(-1, layer.topk, layer.hidden) * call.topk_weights.unsqueeze(2)).sum(dim=1).to(x.dtype)

    return run


def torch_ways(call: ExpertCall, w1: torch.Tensor, w2: torch.Tensor) -> dict[str, OtherWay]:
    """The layer."""
    return {TORCH_LAYER: OtherWay(partial(torch_layer, call, w1, w2), whole=True)}

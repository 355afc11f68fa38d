"""Stages of the backward pass of `moe` by torch's grouped GEMM, on any device; nothing waits for the device.

Rows are gathered into copies, and products rounded to BF16, before they are scaled, activated or added, where kernels would keep FP32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..problem import Problem
from ..reference.activation import activation_gradient
from ..reference.expert_gradients import Columns


class SortedSlots(NamedTuple):
    """Slots sorted by expert, stably, those of no expert last.

    order    int64 [slots], the slot of each row
    sources  int64 [slots], the token of each row
    places   int64 [tokens, topk], the row of each slot
    masked   bool [tokens, topk], slots of no expert
    ends     int32 [E], the row after each expert's last
    """

    order: torch.Tensor
    sources: torch.Tensor
    places: torch.Tensor
    masked: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, topk_idx: torch.Tensor, experts: int) -> SortedSlots:
        masked = (topk_idx < 0) | (topk_idx >= experts)
        sorted_idx, order = topk_idx.masked_fill(masked, experts).flatten().sort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        ends = torch.searchsorted(
            sorted_idx, torch.arange(experts, device=order.device, dtype=sorted_idx.dtype), right=True, out_int32=True
        )
        return cls(order, order // topk_idx.shape[1], places.view(topk_idx.shape), masked, ends)


def row_gradients(
    problem: Problem,
    dy: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    w2: torch.Tensor,
    preactivations: torch.Tensor,
    columns: tuple[Columns, Columns],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dH, w A and dw (reference/expert_gradients.py)."""
    slots, (to_halves, back) = SortedSlots.of(topk_idx, len(w2)), columns
    weights = topk_weights.flatten()[slots.order, None]
    raw = torch._grouped_mm(dy[slots.sources], w2, offs=slots.ends).float()
    halves = to_halves(preactivations).float()
    product, gradient = activation_gradient(problem.activates, problem.activation_clamp, halves, raw * weights, fast_math=False)
    a = product.bfloat16().float()
    dw = (raw * a).sum(dim=1)[slots.places.flatten()].view(topk_weights.shape)
    return back(gradient).bfloat16(), (a * weights).bfloat16(), dw.masked_fill(slots.masked, 0.0)


def token_gradients(rows: torch.Tensor, topk_idx: torch.Tensor, w1: torch.Tensor) -> torch.Tensor:
    """dX, bfloat16 [tokens, H]: a token's rows added in FP32 in the order of its slots."""
    slots = SortedSlots.of(topk_idx, len(w1))
    products = torch._grouped_mm(rows, w1, offs=slots.ends)
    total = torch.zeros(len(topk_idx), w1.shape[2], dtype=torch.float32, device=rows.device)
    for slot in range(topk_idx.shape[1]):
        total += products[slots.places[:, slot]].masked_fill_(slots.masked[:, slot, None], 0.0)
    return total.to(rows.dtype)


def weight_gradients(rows: torch.Tensor, tokens: torch.Tensor, topk_idx: torch.Tensor, experts: int, tokens_first: bool) -> torch.Tensor:
    """The sum of rows^T tokens over the rows of each expert, bfloat16 [E, M, N]; with `tokens_first` its transpose."""
    slots = SortedSlots.of(topk_idx, experts)
    pair = rows, tokens[slots.sources]
    left, right = pair[::-1] if tokens_first else pair
    found = torch._grouped_mm(left.T, right, offs=slots.ends)
    empty = slots.ends.diff(prepend=slots.ends.new_zeros(1)) == 0
    return found.masked_fill_(empty[:, None, None], 0.0)

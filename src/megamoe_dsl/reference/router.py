"""What a router hands to the GEMMs of one GPU's layer: the experts of each token, and rows sorted by expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from megamoe_dsl.problem import ProblemError


@dataclass(frozen=True)
class RouterMetadata:
    """Rows sorted by expert, and within an expert by token; slots of no expert have no row.

    counts     int32 [num_experts], rows of each expert
    ends       int32 [num_experts], the row after each expert's last
    sources    int32 [rows], the token of each row
    positions  int32 [tokens, topk], the row of each slot, -1 where it has none
    """

    counts: torch.Tensor
    ends: torch.Tensor
    sources: torch.Tensor
    positions: torch.Tensor


def router_metadata(topk_idx: torch.Tensor, num_experts: int) -> RouterMetadata:
    """Histogram, offsets and the stable sort of integers [tokens, topk], of which -1 masks a slot.

    Raises `ProblemError` for an expert out of range.
    """
    flat = topk_idx.flatten().long()
    if flat.numel() and not -1 <= int(flat.min()) <= int(flat.max()) < num_experts:
        bad = int(flat[(flat < -1) | (flat >= num_experts)][0])
        raise ProblemError("topk_idx", bad, f"-1 or an expert in [0, {num_experts})")
    slots = (flat >= 0).nonzero().flatten()
    order = slots[flat[slots].argsort(stable=True)]
    counts = torch.bincount(flat[slots], minlength=num_experts)
    positions = torch.full_like(flat, -1)
    positions[order] = torch.arange(len(order), device=flat.device)
    sources = order // max(topk_idx.shape[1], 1)
    return RouterMetadata(counts.int(), counts.cumsum(0).int(), sources.int(), positions.view(topk_idx.shape).int())


def top_experts(
    logits: torch.Tensor,
    topk: int,
    scores: str = "softmax",
    bias: torch.Tensor | None = None,
    groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts with the highest scores, highest first, and their weights: (int32 [tokens, topk], float32 [tokens, topk]).

    logits  float32 [tokens, experts]
    scores  softmax, over those that are chosen, or sigmoid, divided by the sum of those that are chosen (DeepSeek-V3's report, 2.1.2)
    bias    float32 [experts], added to sigmoids to choose by
    groups  of experts, of which the `topk_groups` with the highest sums of two scores have a chance
    scale   that weights are multiplied with

    Of equal scores the expert of the lower number comes first.  Sums of a token's shares are formed in float64.
    """
    chosen_by = logits if scores == "softmax" else logits.sigmoid()
    chosen_by = chosen_by if bias is None else chosen_by + bias
    if groups > 1:
        of_group = chosen_by.view(len(logits), groups, -1)
        sums = of_group.topk(2, dim=2).values.sum(dim=2)
        best = sums.sort(dim=1, descending=True, stable=True).indices[:, :topk_groups]
        kept = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, True)
        chosen_by = of_group.masked_fill(~kept[:, :, None], -torch.inf).view(logits.shape)
    order = chosen_by.sort(dim=1, descending=True, stable=True).indices[:, :topk]
    chosen = logits.gather(1, order).double()
    shares = chosen.softmax(dim=1) if scores == "softmax" else chosen.sigmoid() / chosen.sigmoid().sum(dim=1, keepdim=True)
    return order.int(), (shares * scale).float()


def top_experts_gradient(chosen: torch.Tensor, gradient: torch.Tensor, scores: str = "softmax", scale: float = 1.0) -> torch.Tensor:
    """The gradient of the chosen experts' logits, float32 [tokens, topk], from that of their weights.

    chosen    logits of the chosen experts, [tokens, topk]; the other logits have no gradient
    gradient  float32 [tokens, topk]
    scores, scale  those of `top_experts`.  All is computed in float64 and rounded once.
    """
    values, given = chosen.double(), gradient.double() * scale
    parts = values.softmax(dim=1) if scores == "softmax" else values.sigmoid()
    shares = parts / parts.sum(dim=1, keepdim=True)
    through = shares * (given - (shares * given).sum(dim=1, keepdim=True))
    return (through if scores == "softmax" else through * (1.0 - parts)).float()


def weighted_sum(rows: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Each token's rows times their weights, added in the order of its slots in FP32 with one rounding each: BF16 [tokens, channels].

    `rows` are bfloat16 [rows, channels], `positions` those of `RouterMetadata`, and `weights` float32 [tokens, topk].  Of float64 rows the
    sum is float64, and nothing is rounded.
    """
    sums = torch.float64 if rows.dtype == torch.float64 else torch.float32
    total = torch.zeros(len(positions), rows.shape[1], dtype=sums, device=rows.device)
    for slot in range(positions.shape[1] if len(rows) else 0):
        at, there = positions[:, slot].long(), positions[:, slot] >= 0
        term = rows[at.clamp(min=0)].double() * weights[:, slot, None].double()
        total = torch.where(there[:, None], (term + total.double()).to(sums), total)
    return total.to(rows.dtype)

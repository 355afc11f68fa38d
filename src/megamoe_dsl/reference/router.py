"""Routing of one GPU's layer: the experts of each token with their weights, and rows sorted by expert."""

from __future__ import annotations

from collections.abc import Callable
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
    """Histogram, offsets, stable sort of integers [tokens, topk], where -1 masks a slot.  Raises `ProblemError` for one out of range."""
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
    given: torch.Tensor | None = None,
    replicas: torch.Tensor | None = None,
    replica_shift: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts with the highest scores, highest first, and their weights: (int32 [tokens, topk], float32 [tokens, topk]).

    logits  float32 [tokens, experts]
    scores  softmax, over those that are chosen; or sigmoid (DeepSeek-V3's report, 2.1.2) or sqrtsoftplus, the root of log(1 + exp(logit))
            (DeepSeek-V4), divided by the sum of those that are chosen
    bias    float32 [experts], added to scores to choose by
    groups  number of expert groups; only experts of the `topk_groups` groups with the highest sums of two scores are chosen
    scale   factor of the weights
    given   int32 [tokens, topk], experts to take instead of the highest; -1 masks a slot, whose weight is 0
    replicas  int32 [experts, most], where each expert is, then -1: token t takes place (t + replica_shift) modulo their number

    Of equal scores the expert of the lower number comes first.  Sums of a token's shares are formed in float64.
    """
    chosen_by = SCORES[scores](logits)
    chosen_by = chosen_by if bias is None else chosen_by + bias
    if groups > 1:
        of_group = chosen_by.view(len(logits), groups, -1)
        sums = of_group.topk(2, dim=2).values.sum(dim=2)
        best = sums.sort(dim=1, descending=True, stable=True).indices[:, :topk_groups]
        kept = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, True)
        chosen_by = of_group.masked_fill(~kept[:, :, None], -torch.inf).view(logits.shape)
    order = chosen_by.sort(dim=1, descending=True, stable=True).indices[:, :topk] if given is None else given.long()
    chosen = logits_of(logits, order).double()
    parts = SCORES[scores](chosen)
    shares = (chosen.softmax(dim=1) if scores == "softmax" else parts / parts.sum(dim=1, keepdim=True)).masked_fill(order < 0, 0.0)
    places = order if replicas is None else replica_places(order, replicas, replica_shift)
    return places.int(), (shares * scale).float()


def softplus_root(logits: torch.Tensor) -> torch.Tensor:
    """The root of log(1 + exp(logit))."""
    return (logits.relu() - torch.log1p(-(-logits.abs()).sigmoid())).sqrt()


SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": softplus_root,
}
"""Scores by name: experts are chosen by them."""


def logits_of(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The logits of chosen experts, [tokens, topk]; -infinity where a slot is masked."""
    return logits.gather(1, chosen.clamp(min=0)).masked_fill(chosen < 0, -torch.inf)


def hashed_experts(hash_table: torch.Tensor, token_ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Experts, int32 [tokens, topk]: the row of the table [ids, topk] for each token's id; -1 for an id or an expert out of range."""
    there = (token_ids >= 0) & (token_ids < len(hash_table))
    found = hash_table[token_ids.where(there, 0)]
    return found.where(there[:, None] & (found >= 0) & (found < num_experts), -1).int()


def replica_places(experts: torch.Tensor, replicas: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """The place of each slot's expert; its `replicas` take turns.  -1 for a masked slot and for an expert without a place."""
    places = replicas[experts.clamp(min=0)]
    turn = torch.arange(shift, shift + len(experts), device=experts.device)[:, None] % (places >= 0).sum(dim=2).clamp(min=1)
    return places.gather(2, turn[:, :, None]).squeeze(2).where(experts >= 0, -1)


def top_experts_gradient(chosen: torch.Tensor, gradient: torch.Tensor, scores: str = "softmax", scale: float = 1.0) -> torch.Tensor:
    """The gradient of the chosen experts' logits, float32 [tokens, topk], from that of their weights.

    chosen    logits of the chosen experts, [tokens, topk]; the other logits have no gradient
    gradient  float32 [tokens, topk]
    scores, scale  those of `top_experts`.  All is computed in float64 and rounded once.
    """
    values, given = chosen.double(), gradient.double() * scale
    parts = values.softmax(dim=1) if scores == "softmax" else SCORES[scores](values)
    shares = parts / parts.sum(dim=1, keepdim=True)
    through = shares * (given - (shares * given).sum(dim=1, keepdim=True))
    if scores == "sigmoid":
        through = through * (1.0 - parts)
    elif scores == "sqrtsoftplus":
        through = through * (values.sigmoid() / (2.0 * parts.square()))
    return through.masked_fill(values == -torch.inf, 0.0).float()


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

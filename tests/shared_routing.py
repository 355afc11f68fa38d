"""Routing of one rank's tokens with its shared experts in it, as `pre_dispatch` writes it."""

from __future__ import annotations

import torch

from megamoe_dsl.shared_experts import SharedExperts


def with_shared(shared: SharedExperts, rank: int, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights [T, topk + count] of `shared.whole` from those [T, topk] of `shared.routed`; what is no expert becomes -1."""
    expert = topk_idx.long()
    known = (expert >= 0) & (expert < shared.routed.num_experts)
    own = shared.first_of(rank) + torch.arange(shared.count, device=expert.device)
    experts = torch.cat([torch.where(known, shared.number_of(expert), -1), own.expand(len(expert), -1)], dim=1)
    return experts, torch.cat([topk_weights, topk_weights.new_ones(len(expert), shared.count)], dim=1)

"""What the torch operators need of a layer."""

from __future__ import annotations

from typing import Protocol

import torch

from ..problem import Problem


class Launchable(Protocol):
    """A layer whose calls are operators."""

    problem: Problem

    def launch(
        self,
        tensors: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor],
        numbers: tuple[int, int],
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """y of x, x_sf, topk_idx and topk_weights; `numbers` are num_tokens_bound and padded_tokens, negative for None."""

"""What the torch operators need of a layer."""

from __future__ import annotations

from typing import Protocol

import torch


class Launchable(Protocol):
    """A layer whose calls are operators."""

    def launch(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        x_sf: torch.Tensor | None,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        num_tokens_bound: int,
        padded_tokens: int,
    ) -> None:
        """Computes y; a negative number stands for None."""

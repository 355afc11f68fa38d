"""What a call's shapes decide, found once per combination of them: at few tokens a layer is over before the host has made the next call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .unfused_kernel import LayerKernel

Tensors = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]
"""x, x_sf, topk_idx, topk_weights."""
Numbers = tuple[int, int]
"""num_tokens_bound and padded_tokens; negative where none is given."""

MOST = 1 << 14
"""Plans that are kept: more than a rank's tokens have values."""


@dataclass(frozen=True)
class CallPlan:
    """The kernel of a call and its rows of y, padding included."""

    kernel: LayerKernel
    rows: int


class CallPlans:
    """Plans by the layouts of a call's tensors; `make` checks and makes one, and raises where tensors do not fit."""

    def __init__(self, make: Callable[[Tensors, Numbers], CallPlan]) -> None:
        self._make = make
        self._made: dict[tuple[object, ...], CallPlan] = {}

    def of(self, tensors: Tensors, numbers: Numbers) -> CallPlan:
        """The plan of a call.  A tensor counts by dtype, shape, whether it is contiguous, and device: nothing else is looked at again."""
        x, x_sf, idx, weights = tensors
        key: tuple[object, ...] = (
            numbers,
            x.dtype, x.shape, x.is_contiguous(), x.get_device(),
            idx.dtype, idx.shape, idx.is_contiguous(), idx.get_device(),
            weights.dtype, weights.shape, weights.is_contiguous(), weights.get_device(),
        )  # fmt: skip
        if x_sf is not None:
            key += (x_sf.dtype, x_sf.shape, x_sf.is_contiguous(), x_sf.get_device())
        plan = self._made.get(key)
        if plan is None:
            plan = self._make(tensors, numbers)
            if len(self._made) >= MOST:
                self._made.clear()
            self._made[key] = plan
        return plan

"""What a call's shapes decide, found once per combination of them: at few tokens a layer is over before the host has made the next call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

Tensors = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]
"""x, x_sf, topk_idx, topk_weights."""
Numbers = tuple[int, int]
"""num_tokens_bound and padded_tokens; negative where none is given."""

Plan = TypeVar("Plan")

MOST = 1 << 14
"""Plans that are kept: more than a rank's tokens have values."""


class CallPlans(Generic[Plan]):
    """Plans by the layouts of a call's tensors; `make` checks and makes one, and raises where tensors do not fit."""

    def __init__(self, make: Callable[[Any, Any], Plan]) -> None:
        self._make = make
        self._made: dict[tuple[object, ...], Plan] = {}
        self._last: tuple[tuple[object, ...], Plan] | None = None

    def of(self, tensors: Sequence[torch.Tensor | None], others: tuple[object, ...]) -> Plan:
        """The plan of a call, which its tensors and `others` decide.  A tensor counts by dtype, shape, whether it is contiguous, and
        device, or by its absence: nothing else is looked at again."""
        key = others
        for tensor in tensors:
            key += (None,) if tensor is None else (tensor.dtype, tensor.shape, tensor.is_contiguous(), tensor.get_device())
        last = self._last  # calls come in runs; to compare takes less than to hash
        if last is not None and last[0] == key:
            return last[1]
        plan = self._made.get(key)
        if plan is None:
            plan = self._make(tensors, others)
            if len(self._made) >= MOST:
                self.clear()
            self._made[key] = plan
        self._last = key, plan
        return plan

    def clear(self) -> None:
        self._made.clear()
        self._last = None

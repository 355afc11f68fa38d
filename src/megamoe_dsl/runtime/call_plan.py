"""Plans of calls, made once per combination of shapes: with few tokens a layer takes less time than the host's part of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

Tensors = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]
"""x, x_sf, topk_idx, topk_weights."""

Plan = TypeVar("Plan")

MOST = 1 << 14
"""Most plans that are kept: more than numbers of tokens on a rank."""


class CallPlans(Generic[Plan]):
    """Plans by the layouts of a call's tensors; `make` checks the tensors and makes a plan."""

    def __init__(self, make: Callable[[Any, Any], Plan]) -> None:
        self._make = make
        self._made: dict[tuple[object, ...], Plan] = {}
        self._last: tuple[tuple[object, ...], Plan] | None = None

    def of(self, tensors: Sequence[torch.Tensor | None], others: tuple[object, ...]) -> Plan:
        """The plan for the tensors' dtypes, shapes, contiguity and devices, which of them are None, and `others`."""
        key = others
        for tensor in tensors:
            key += (None,) if tensor is None else (tensor.dtype, tensor.shape, tensor.is_contiguous(), tensor.get_device())
        last = self._last  # equal calls come in runs, and comparing is faster than hashing
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

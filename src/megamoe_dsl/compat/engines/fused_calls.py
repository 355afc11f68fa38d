"""The calls that an engine makes, with the number of tokens that it knows of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch

from ...runtime.rank_kernel import WATCHDOG_NS
from ...runtime.watchdog import check_watchdog_ns
from .. import deep_gemm

Bound = Callable[[int], int]
"""From this rank's rows to at least the tokens of every rank of the step: it chooses the kernel, and no result depends on it."""


def fused_calls(bound: Bound, watchdog_ns: int = WATCHDOG_NS) -> dict[str, Callable[..., Any]]:
    """By DeepGEMM's names.  Its `get_num_sms` and `transform_sf_into_required_layout` are not among them: its GEMMs use them too.

    watchdog_ns  how long a launch of the engine may wait for another rank.  Raises `ProblemError` for what is no such limit
    """
    limit = check_watchdog_ns(watchdog_ns)
    buffers: tuple[Callable[..., Any], ...] = (deep_gemm.get_symm_buffer_for_mega_moe, deep_gemm.get_symm_buffer_for_sm90_mega_moe)
    unchanged = (
        deep_gemm.transform_weights_for_mega_moe,
        deep_gemm.transform_weights_for_mega_moe_sm90,
        deep_gemm.mega_moe_pre_dispatch,
        deep_gemm.mega_moe_pre_dispatch_sm90,
    )
    bounded = (deep_gemm.fp8_mega_moe, deep_gemm.fp8_fp4_mega_moe)
    made = {one.__name__: partial(one, watchdog_ns=limit) for one in buffers}
    return made | {one.__name__: one for one in unchanged} | {one.__name__: _bounded(one, bound) for one in bounded}


def _bounded(call: Callable[..., None], bound: Bound) -> Callable[..., None]:
    def run(y: torch.Tensor, l1_weights: Any, l2_weights: Any, sym_buffer: deep_gemm.SymmBuffer, *rest: Any, **options: Any) -> None:
        if options.get("num_tokens_bound") is None:
            rows, most = y.shape[0], sym_buffer.num_max_tokens_per_rank
            options["num_tokens_bound"] = min(max(rows, bound(rows)), most)
        call(y, l1_weights, l2_weights, sym_buffer, *rest, **options)

    run.__name__, run.__doc__ = call.__name__, call.__doc__
    return run


_ABSENT = object()


class Swap:
    """Replaces attributes of other packages' modules, and puts back what was there."""

    def __init__(self) -> None:
        self._before: list[tuple[ModuleType, str, object]] = []

    def put(self, owner: ModuleType, name: str, value: object) -> None:
        """Sets an attribute, which need not be there yet."""
        self._before.append((owner, name, getattr(owner, name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Everything as it was, the last change first."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

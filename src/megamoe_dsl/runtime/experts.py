"""A MoE layer on one GPU, as an operator that torch.compile takes as one node.

    y = moe(x, w1, w1_sf, w2, w2_sf, topk_idx, topk_weights)
    y = moe(x, w1, w1_sf, w2, w2_sf, router_logits=logits, topk=8)

A call launches four kernels on torch's current stream and does not synchronise.  The first call with a shape compiles them or loads them
from the cache: before a graph is captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..kernels.expert_routing.layer import ExpertLayer
from ..problem import ProblemError
from .call_plan import CallPlans
from .custom_op import define, is_plain_call
from .device_gemm import check_current
from .expert_call import ExpertCall, ExpertWeightsFp8
from .expert_plan import ExpertPlan


def moe(
    x: torch.Tensor,
    w1: torch.Tensor,
    w1_sf: torch.Tensor,
    w2: torch.Tensor,
    w2_sf: torch.Tensor,
    topk_idx: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    *,
    router_logits: torch.Tensor | None = None,
    topk: int | None = None,
    gate_up: str = "gate_first",
    activation: str = "silu",
) -> torch.Tensor:
    """The layer, all of whose E experts are on this GPU: bfloat16 [T, H].  Weights are E4M3 on Hopper, E2M1 on Blackwell.

    x              bfloat16 [T, H], H a multiple of 128; quantised to E4M3 per token and 128, on Blackwell 32
    w1, w1_sf      float8_e4m3fn [E, 2 I, H], float32 [E, 2 I / 128, H / 128]: rows of gate and up as `gate_up` says
    w2, w2_sf      float8_e4m3fn [E, H, I], float32 [E, H / 128, I / 128]; both on Blackwell of E2M1, as `gemm_weights` makes them
    topk_idx       int64 or int32 [T, topk], -1 masks a slot; and topk_weights, float32 [T, topk]
    router_logits  [T, E], instead of those: the `topk` highest, weighted by their softmax
    gate_up        gate_first, up_first, or interleaved
    activation     of gate and up (activation.py)

    Gate and up are rounded to BF16, their product to E4M3 with a power of two per row and 128, or 32; a token's rows are BF16, added in
    FP32 in the order of its slots.  Raises `ProblemError`, which names the tensor and what is wrong with it, before anything is launched.
    """
    if router_logits is not None:
        if topk_idx is not None or topk_weights is not None:
            raise ProblemError("topk_idx", "a tensor", "None with router_logits")
        topk_weights, topk_idx = top_experts(router_logits, topk)
    elif topk is not None:
        raise ProblemError("topk", topk, "None without router_logits")
    if topk_idx is None or topk_weights is None:
        raise ProblemError("topk_idx, topk_weights", None, "tensors, or router_logits given")
    call = launch if is_plain_call(x) else moe_op
    y: torch.Tensor = call(x, topk_idx, topk_weights, w1, w1_sf, w2, w2_sf, gate_up, activation)
    return y


def top_experts(logits: torch.Tensor, topk: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, float32, and experts of the highest logits.  Raises `ProblemError`."""
    if logits.dim() != 2:
        raise ProblemError("router_logits.shape", tuple(logits.shape), "(tokens, experts)")
    if topk is None or not 1 <= topk <= logits.shape[1]:
        raise ProblemError("topk", topk, f"between 1 and {logits.shape[1]} with router_logits")
    chosen = logits.float().topk(topk, dim=1)
    return chosen.values.softmax(dim=1), chosen.indices


def layer_of(x: torch.Tensor, topk_idx: torch.Tensor, w1: torch.Tensor, gate_up: str, activation: str) -> ExpertLayer:
    """The layer of such tensors.  Raises `ProblemError`."""
    for name, tensor, shape, dims in (("w1", w1, "(experts, 2 * intermediate, hidden)", 3), ("topk_idx", topk_idx, "(tokens, topk)", 2)):
        if tensor.dim() != dims:
            raise ProblemError(f"{name}.shape", tuple(tensor.shape), shape)
    packed = w1.dtype == torch.uint8
    hidden, recipe = (2 * w1.shape[2], "fp8xfp4") if packed else (w1.shape[2], "fp8xfp8")
    return ExpertLayer(hidden, w1.shape[1] // 2, w1.shape[0], topk_idx.shape[1], gate_up, activation, recipe)


def launch(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    w1: torch.Tensor,
    w1_sf: torch.Tensor,
    w2: torch.Tensor,
    w2_sf: torch.Tensor,
    gate_up: str,
    activation: str,
) -> torch.Tensor:
    """`moe` of chosen experts, as an operator or without one."""
    idx = topk_idx.long() if topk_idx.dtype == torch.int32 else topk_idx
    weights = (w1, w1_sf, w2, w2_sf)
    if not len(x):
        call = call_of((x, idx, topk_weights, *weights), gate_up, activation)
        return call.y
    return _PLANS.of((x, idx, topk_weights, *weights), (gate_up, activation))(x, idx, topk_weights, weights)


def call_of(tensors: Sequence[torch.Tensor], gate_up: str, activation: str) -> ExpertCall:
    """The call of x, topk_idx, topk_weights and the weights, checked.  Raises `ProblemError`."""
    x, idx, topk_weights, *weights = tensors
    call = ExpertCall(layer_of(x, idx, weights[0], gate_up, activation), x, idx, topk_weights, ExpertWeightsFp8(*weights))
    call.check()
    return call


def _plan(tensors: Sequence[torch.Tensor], layouts: tuple[str, str]) -> ExpertPlan:
    call = call_of(tensors, *layouts)
    check_current(call.x.device)
    return ExpertPlan(call)


def _fake(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty_like(x)


_PLANS = CallPlans(_plan)
_TENSORS = ", ".join(f"Tensor {name}" for name in ("x", "topk_idx", "topk_weights", "w1", "w1_sf", "w2", "w2_sf"))

moe_op = define("moe", f"({_TENSORS}, str gate_up, str activation) -> Tensor", launch, _fake)
"""`moe` of chosen experts, as an operator."""


__all__ = ["moe"]

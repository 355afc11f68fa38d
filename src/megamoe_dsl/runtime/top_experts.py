"""Experts of each token from its router's logits, in one launch; an operator that torch.compile takes as one node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ..artifact.cache import cache_folder
from ..artifact.store import ArtifactStore
from ..kernels.expert_routing.family import TopExpertsKernel
from ..kernels.expert_routing.problem import BF16, F32, SOFTMAX, TopExpertsProblem
from ..problem import ProblemError
from ..reference.router import top_experts as chosen_experts
from ..reference.router import top_experts_gradient
from .buffers import check_device, check_tensor
from .call_plan import CallPlans
from .cuda_kernel import LAUNCHES, CudaKernel
from .custom_op import check_no_gradient, define, differentiate, is_plain_call
from .device_gemm import check_current, gpu_target
from .tensor_arguments import takes_tensors

DTYPES = {torch.float32: F32, torch.bfloat16: BF16}
Chosen = tuple[torch.Tensor, torch.Tensor]
"""Experts, int64 [tokens, topk], and their weights, float32."""


@takes_tensors("logits", optional=("bias",))
def top_experts(
    logits: torch.Tensor,
    topk: int,
    *,
    scores: str = SOFTMAX,
    bias: torch.Tensor | None = None,
    groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1.0,
) -> Chosen:
    """The `topk` experts of each token with the highest scores, int64 [tokens, topk], and their weights, float32.

    logits       float32 or bfloat16 [tokens, experts]
    scores       softmax: weights are a softmax over the logits of those chosen; sigmoid: of each, divided by their sum
    bias         float32 [experts], added to sigmoids to choose by; None: no bias
    groups       experts are that many groups, of which the `topk_groups` with the highest sums of two scores have a chance
    scale        that weights are multiplied with

    Of equal scores the expert with the lower number comes first; -0.0 equals 0.0, and a NaN is the highest.  Threads may call at once, as
    they may `moe`.  Logits have a gradient.  Raises `ProblemError` before anything is launched, also for a bias that requires grad.
    """
    check_no_gradient(("bias",), (bias,))
    call = launch if is_plain_call(logits) else top_experts_op
    found: Chosen = call(logits, bias, topk, scores, groups, topk_groups, scale)
    return found


class TopExpertsPlan:
    """The kernel of all calls with logits of one layout."""

    def __init__(self, problem: TopExpertsProblem, device: torch.device) -> None:
        self._topk, self._device, self._kernel = problem.topk, device, top_experts_kernel(problem, device)

    def __call__(self, logits: torch.Tensor, bias: torch.Tensor | None) -> Chosen:
        """Launches on torch's current stream.  Raises `ProblemError` for the wrong device."""
        if self._device.index != torch._C._cuda_getDevice():
            check_current(self._device)
        tokens = logits.shape[0]
        idx = torch.empty((tokens, self._topk), dtype=torch.int64, device=logits.device)
        weights = torch.empty((tokens, self._topk), dtype=torch.float32, device=logits.device)
        self.launch(logits, bias, idx.data_ptr(), weights.data_ptr())
        return idx, weights

    def launch(self, logits: torch.Tensor, bias: torch.Tensor | None, topk_idx: int, topk_weights: int) -> None:
        """The same, with what is chosen to these addresses."""
        values = self._kernel.arguments.values
        with LAUNCHES:
            values.logits, values.bias = logits.data_ptr(), 0 if bias is None else bias.data_ptr()
            values.topk_idx, values.topk_weights, values.num_tokens = topk_idx, topk_weights, logits.shape[0]
            self._kernel.launch()


@lru_cache
def top_experts_kernel(problem: TopExpertsProblem, device: torch.device) -> CudaKernel:
    """From the cache, which compiles what is missing."""
    config = TopExpertsKernel().choose(problem, gpu_target(device), 0)
    return CudaKernel(ArtifactStore(cache_folder()).get(config))


def problem_of(logits: torch.Tensor, bias: torch.Tensor | None, others: tuple[int, str, int, int, float]) -> TopExpertsProblem:
    """Checks the tensors and makes the problem that they pose.  Raises `ProblemError`."""
    topk, scores, groups, topk_groups, scale = others
    if logits.dim() != 2:
        raise ProblemError("router_logits.shape", tuple(logits.shape), "(tokens, experts)")
    tokens, experts = logits.shape
    check_tensor("router_logits", logits, tuple(DTYPES), (tokens, experts))
    problem = TopExpertsProblem(experts, topk, scores, DTYPES[logits.dtype], bias is not None, groups, topk_groups, scale)
    problem.check_tokens(tokens, "router_logits.shape[0]")
    if bias is not None:
        check_tensor("bias", bias, torch.float32, (experts,))
        check_device("bias", bias, logits.device)
    return problem


def _plan(tensors: Sequence[torch.Tensor | None], others: tuple[int, str, int, int, float]) -> TopExpertsPlan:
    logits, bias = tensors
    assert logits is not None
    problem = problem_of(logits, bias, others)
    check_current(logits.device)
    return TopExpertsPlan(problem, logits.device)


_PLANS = CallPlans(_plan)


def launch(logits: torch.Tensor, bias: torch.Tensor | None, *others: int | str | float) -> Chosen:
    """`top_experts`, as an operator or without one."""
    if not logits.numel():
        return _fake(logits, bias, *others)
    if logits.device.type == "cpu":
        return _on_cpu(logits, bias, *others)
    return _PLANS.of((logits, bias), others)(logits, bias)


def _on_cpu(logits: torch.Tensor, bias: torch.Tensor | None, *others: int | str | float) -> Chosen:
    problem_of(logits, bias, others)  # type: ignore[arg-type]
    topk, scores, groups, topk_groups, scale = others
    idx, weights = chosen_experts(logits.float(), topk, scores, bias, groups, topk_groups, scale)  # type: ignore[arg-type]
    return idx.long(), weights


def _fake(logits: torch.Tensor, bias: torch.Tensor | None, *others: int | str | float) -> Chosen:
    problem = problem_of(logits, bias, others)  # type: ignore[arg-type]
    shape = (len(logits), problem.topk)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Chosen) -> None:
    logits, _, _, ctx.scores, *_, ctx.scale = inputs
    ctx.save_for_backward(logits, output[0])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: object, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if gradient is None:
        return (None,) * 7
    logits, idx = ctx.saved_tensors
    of_chosen = top_experts_gradient(logits.gather(1, idx), gradient, ctx.scores, ctx.scale)
    return torch.zeros_like(logits).scatter(1, idx, of_chosen.to(logits.dtype)), *(None,) * 6


top_experts_op = differentiate(
    define(
        "top_experts",
        "(Tensor logits, Tensor? bias, int topk, str scores, int groups, int topk_groups, float scale) -> (Tensor, Tensor)",
        launch,
        _fake,
    ),
    _backward,
    _keep,
)
"""`top_experts`, as an operator."""


__all__ = ["top_experts"]

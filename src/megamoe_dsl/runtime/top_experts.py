"""Chooses each token's experts from logits in one launch; an operator that torch.compile takes as one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from ..kernels.expert_routing.problem import BF16, F32, MOST_SLOTS, SOFTMAX, TopExpertsProblem
from ..problem import ProblemError, integer_between
from ..reference.router import hashed_experts, logits_of, top_experts_gradient
from ..reference.router import top_experts as chosen_experts
from .buffers import check_dims, check_tensor
from .call_plan import CallPlans
from .cuda_kernel import LAUNCHES
from .custom_op import check_no_gradient, define, differentiate, is_plain_call, takes_tensors
from .device_gemm import check_current, loaded_kernel

DTYPES = {torch.float32: F32, torch.bfloat16: BF16}
PARTS, MANY_TOKENS = 3, 1024
"""Number of BF16 matrices whose sum is an FP32 router, and the tokens from which on the router is split into them."""
RouterTensors = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Logits, bias, token_ids, hash_table and replicas."""
Choice = tuple[int, str, int, int, float, int]
"""topk, scores, groups, topk_groups, scale and replica_shift."""
Chosen = tuple[torch.Tensor, torch.Tensor]
"""Experts, int64 [tokens, topk], and their weights, float32."""


@takes_tensors("logits", optional=("bias", "token_ids", "hash_table", "replicas"))
def top_experts(
    logits: torch.Tensor,
    topk: int,
    *,
    scores: str = SOFTMAX,
    bias: torch.Tensor | None = None,
    groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1.0,
    token_ids: torch.Tensor | None = None,
    hash_table: torch.Tensor | None = None,
    replicas: torch.Tensor | None = None,
    replica_shift: int = 0,
) -> Chosen:
    """The `topk` experts of each token with the highest scores, int64 [tokens, topk], and their weights, float32 [tokens, topk].

    logits       float32 or bfloat16 [tokens, experts]
    scores       softmax: weights are a softmax over the chosen logits.  sigmoid, or sqrtsoftplus (the root of log(1 + exp(logit))): weights
                 are the chosen scores, divided by their sum
    bias         float32 [experts], added to sigmoid or sqrtsoftplus scores for the choice only
    groups       number of expert groups; only experts of the `topk_groups` groups with the highest sums of two scores are chosen
    scale        factor of the weights
    token_ids    int64 [tokens], with hash_table, int32 [ids, topk]: row token_ids[t] of the table lists token t's experts (DeepSeek-V4's
                 first layers); an id out of range, or an entry of no expert, gives -1 with weight 0
    replicas     int32 [experts, most]: the places of each expert, then -1 (SGLang's logical_to_all_physical_map).  Places are returned in
                 place of experts: token t takes replica (t + replica_shift) modulo their number
    replica_shift  0 or more, for example the rank, so that ranks with few tokens do not all take the first replicas

    Ties go to the lower index; -0.0 equals 0.0, and NaN is the highest score.  Threads may call at once.  Logits have a gradient unless
    there are replicas.  Raises `ProblemError` before any launch, also for a bias that requires grad.
    """
    check_no_gradient(("bias",), (bias,))
    if replicas is not None:
        check_no_gradient(("logits",), (logits,))
    call = launch if is_plain_call(logits) else top_experts_op
    found: Chosen = call(logits, bias, token_ids, hash_table, replicas, topk, scores, groups, topk_groups, scale, replica_shift)
    return found


class TopExpertsPlan:
    """The kernel for logits of one layout."""

    def __init__(self, problem: TopExpertsProblem, device: torch.device, shift: int) -> None:
        self._problem, self._device, self._shift = problem, device, shift
        self._kernel = loaded_kernel(device, TopExpertsProblem, *vars(problem).values())

    def __call__(self, router: RouterTensors) -> Chosen:
        """Launches on torch's current stream.  Raises `ProblemError` for the wrong device."""
        if self._device.index != torch._C._cuda_getDevice():
            check_current(self._device, "logits.device")
        logits = router[0]
        shape = (logits.shape[0], self._problem.topk)
        idx = torch.empty(shape, dtype=torch.int64, device=logits.device)
        weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
        self.launch(*router, idx.data_ptr(), weights.data_ptr())
        return idx, weights

    def launch(self, *given: Any) -> None:
        """Launches with a router's tensors, then the addresses of both results."""
        logits, bias, token_ids, hash_table, replicas, topk_idx, topk_weights = given
        values = self._kernel.arguments.values
        with LAUNCHES:
            values.logits, values.bias = logits.data_ptr(), 0 if bias is None else bias.data_ptr()
            values.topk_idx, values.topk_weights, values.num_tokens = topk_idx, topk_weights, logits.shape[0]
            if self._problem.hashed or self._problem.replicas:
                values.token_ids, values.hash_table, values.replicas = (
                    0 if one is None else one.data_ptr() for one in (token_ids, hash_table, replicas)
                )
                values.hash_rows, values.replica_shift = 0 if hash_table is None else len(hash_table), self._shift
            self._kernel.launch()


def router_logits_of(x: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
    """x router^T in FP32, [tokens, experts], of bfloat16 x [tokens, H] and a router, bfloat16 or float32 [experts, H].

    torch computes it: on a GPU with tensor cores for a bfloat16 router, and for a float32 one with many tokens, split into BF16 parts;
    else, and when it trains, in FP32."""
    trains = torch.is_grad_enabled() and (x.requires_grad or router.requires_grad)
    if router.dim() != 2 or router.shape[1:] != x.shape[1:]:
        raise ProblemError("router.shape", tuple(router.shape), f"(experts, {x.shape[-1]})")
    check_tensor("router", router, tuple(DTYPES), tuple(router.shape), x.device)
    with torch.autocast(x.device.type, enabled=False):
        if not x.is_cuda or trains or (router.dtype == torch.float32 and len(x) < MANY_TOKENS):
            return torch.nn.functional.linear(x.float(), router.float())
        if router.dtype == torch.bfloat16:
            return torch.mm(x, router.T, out_dtype=torch.float32)
        return torch.mm(x, cut(router).T, out_dtype=torch.float32).view(len(x), PARTS, len(router)).sum(1)


def cut(router: torch.Tensor) -> torch.Tensor:
    """Splits a float32 router into three BF16 matrices that add up to it: bfloat16 [3 experts, H]."""
    parts, rest = list[torch.Tensor](), router
    for _ in range(PARTS):
        parts.append(rest.bfloat16())
        rest = rest - parts[-1].float()
    return torch.cat(parts)


def problem_of(router: RouterTensors, choice: Choice) -> TopExpertsProblem:
    """The problem of these tensors, after checking them.  Raises `ProblemError`."""
    logits, bias, token_ids, hash_table, replicas = router
    topk, scores, groups, topk_groups, scale, shift = choice
    check_dims("logits", logits, 2, "(tokens, experts)")
    tokens, experts = logits.shape
    check_tensor("logits", logits, tuple(DTYPES), (tokens, experts))
    if (token_ids is None) != (hash_table is None):
        given = [None if one is None else "a tensor" for one in (token_ids, hash_table)]
        raise ProblemError("token_ids, hash_table", given, "both given, or neither")
    if bias is not None and scores == SOFTMAX:
        raise ProblemError("bias", "a tensor", f"None with scores = {SOFTMAX}")
    most = 0 if replicas is None else replicas.shape[-1]
    fields = experts, topk, scores, DTYPES[logits.dtype], bias is not None, groups, topk_groups, scale, hash_table is not None, most
    problem = TopExpertsProblem(*fields)
    problem.check_num_tokens(tokens, "logits.shape[0]")
    integer_between("replica_shift", shift, 0, MOST_SLOTS, f"between 0 and {MOST_SLOTS}")
    rows = 0 if hash_table is None else integer_between("hash_table.shape[0]", hash_table.shape[0], 1, 1 << 30, "1 or more")
    kinds = torch.float32, torch.int64, torch.int32, torch.int32
    shapes = (experts,), (tokens,), (rows, problem.topk), (experts, most)
    for name, tensor, kind, shape in zip(("bias", "token_ids", "hash_table", "replicas"), router[1:], kinds, shapes, strict=True):
        if tensor is not None:
            check_tensor(name, tensor, kind, shape, logits.device)
    return problem


def _plan(tensors: Sequence[torch.Tensor | None], others: tuple[Any, ...]) -> TopExpertsPlan:
    router, choice = cast(RouterTensors, tensors), cast(Choice, others)
    problem = problem_of(router, choice)
    check_current(router[0].device, "logits.device")
    return TopExpertsPlan(problem, router[0].device, choice[-1])


_PLANS = CallPlans(_plan)


def launch(*given: Any) -> Chosen:
    """`top_experts`, as an operator or without one."""
    router, choice = given[:5], given[5:]
    if not router[0].numel():
        return _fake(*given)
    if router[0].device.type == "cpu":
        return _on_cpu(router, choice)
    return _PLANS.of(router, choice)(router)


def _on_cpu(router: RouterTensors, choice: Choice) -> Chosen:
    problem_of(router, choice)
    logits, bias, token_ids, hash_table, replicas = router
    hashed = None if token_ids is None or hash_table is None else hashed_experts(hash_table, token_ids, logits.shape[1])
    topk, scores, groups, topk_groups, scale, shift = choice
    found = chosen_experts(logits.float(), topk, scores, bias, groups, topk_groups, scale, hashed, replicas, shift)
    return found[0].long(), found[1]


def _fake(*given: Any) -> Chosen:
    logits = given[0]
    problem = problem_of(given[:5], given[5:])
    shape = (len(logits), problem.topk)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Chosen) -> None:
    logits, *_, ctx.scores, _, _, ctx.scale, _ = inputs
    ctx.save_for_backward(logits, output[0])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: object, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    logits, idx = ctx.saved_tensors
    of_chosen = top_experts_gradient(logits_of(logits, idx), gradient, ctx.scores, ctx.scale)
    return torch.zeros_like(logits).scatter_add(1, idx.clamp(min=0), of_chosen.to(logits.dtype)), *(None,) * 10


top_experts_op = differentiate(
    define(
        "top_experts",
        "(Tensor logits, Tensor? bias, Tensor? token_ids, Tensor? hash_table, Tensor? replicas, int topk, str scores, int groups, "
        "int topk_groups, float scale, int replica_shift) -> (Tensor, Tensor)",
        launch,
        _fake,
    ),
    _backward,
    _keep,
)


__all__ = ["top_experts"]

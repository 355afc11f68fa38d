"""`moe` with gradients: operators of the forward pass that keeps gate and up, and of the stages of the backward pass.

Between the passes x, the routing, the weights and gate and up of every row are kept: 2 I BF16 values a row.  The first stage makes dH, and
w A, which stand until the gradients of tokens and weights are made.  A stage runs only where somebody asks for what it makes.

CPU tensors take the reference, with the bits that kernels shall have (reference/expert_gradients.py); CUDA tensors torch's grouped GEMMs
(grouped_mm_gradients.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..problem import Problem, ProblemError
from ..reference import expert_gradients as reference
from ..reference.expert_gradients import RowGradients
from ..reference.router import router_metadata
from . import grouped_mm_gradients as by_torch
from .buffers import check_tensor
from .cpu_experts import gate_then_up, rows_of_w1
from .custom_op import define, differentiate

MainGrads = tuple[torch.Tensor, torch.Tensor]
"""float32 [E, 2I, H] and [E, H, I], to which a backward pass adds the gradients of w1 and w2."""


def refuse_transforms(tensors: Sequence[torch.Tensor | None]) -> None:
    """Raises `ProblemError` for tensors that `torch.func` differentiates: forward mode and gradients of gradients are not defined."""
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is None:
        return
    if any(one is not None and torch._C._functorch.is_gradtrackingtensor(one) for one in tensors):
        raise ProblemError("torch.func", "a transform", "left out: gradients come from backward() or torch.autograd.grad")


def check_main_grads(main_grads: MainGrads, w1: torch.Tensor, w2: torch.Tensor) -> None:
    """Raises `ProblemError` for buffers that are not as the weights."""
    for name, total, weight in zip(("main_grads[0]", "main_grads[1]"), main_grads, (w1, w2), strict=True):
        check_tensor(name, total, torch.float32, tuple(weight.shape), weight.device)


def problem_of(activation: str) -> Problem:
    """Whose activation and clamp count."""
    return Problem(256, 128, 1, 1, activation=activation)


def row_gradients(
    dy: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    w2: torch.Tensor,
    preactivations: torch.Tensor,
    gate_up: str,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dH, bfloat16 [tokens * topk, 2I], w A, bfloat16 [tokens * topk, I], and dw, float32 [tokens, topk]; rows that no slot has may hold
    anything."""
    columns = (lambda rows: gate_then_up(rows, gate_up)), (lambda rows: rows_of_w1(rows, gate_up))
    tensors = topk_weights, w2, preactivations, columns
    if dy.device.type != "cpu":
        return by_torch.row_gradients(problem_of(activation), dy, topk_idx, *tensors)
    metadata = router_metadata(named(topk_idx, len(w2)), len(w2))
    found = reference.row_gradients(problem_of(activation), dy, metadata, *tensors)
    rows, weighted = torch.zeros_like(preactivations), preactivations.new_zeros(len(preactivations), w2.shape[2])
    rows[: len(found.rows)], weighted[: len(found.rows)] = found.rows, found.weighted
    return rows, weighted, found.topk_weights


def token_gradients(rows: torch.Tensor, topk_idx: torch.Tensor, w1: torch.Tensor) -> torch.Tensor:
    """dX, bfloat16 [tokens, H], of rows dH."""
    if rows.device.type != "cpu":
        return by_torch.token_gradients(rows, topk_idx, w1)
    metadata = router_metadata(named(topk_idx, len(w1)), len(w1))
    return reference.token_gradients(rows[: len(metadata.sources)], metadata, w1)


def weight_gradients(rows: torch.Tensor, tokens: torch.Tensor, topk_idx: torch.Tensor, experts: int, tokens_first: bool) -> torch.Tensor:
    """The sum of rows^T tokens over the rows of each expert, bfloat16 [E, M, N]; with `tokens_first` its transpose."""
    return _weight_sums(rows, tokens, topk_idx, experts, tokens_first).bfloat16()


def add_weight_gradients(
    total: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, topk_idx: torch.Tensor, experts: int, tokens_first: bool
) -> None:
    """The same, added to a float32 tensor without being rounded to BF16 where the sums are FP32."""
    total += _weight_sums(rows, tokens, topk_idx, experts, tokens_first)


def _weight_sums(rows: torch.Tensor, tokens: torch.Tensor, topk_idx: torch.Tensor, experts: int, tokens_first: bool) -> torch.Tensor:
    if rows.device.type != "cpu":
        return by_torch.weight_gradients(rows, tokens, topk_idx, experts, tokens_first)
    metadata = router_metadata(named(topk_idx, experts), experts)
    pair = rows[: len(metadata.sources)], tokens[metadata.sources.long()]
    return reference.weight_gradients(*(pair[::-1] if tokens_first else pair), metadata)


def named(topk_idx: torch.Tensor, experts: int) -> torch.Tensor:
    """Experts that are there, and -1."""
    return topk_idx.where((topk_idx >= 0) & (topk_idx < experts), -1)


_rows_op = define(
    "moe_row_gradients",
    "(Tensor dy, Tensor topk_idx, Tensor topk_weights, Tensor w2, Tensor preactivations, str gate_up, str activation)"
    " -> (Tensor, Tensor, Tensor)",
    row_gradients,
    lambda dy, idx, weights, w2, stored, *_: (
        torch.empty_like(stored),
        stored.new_empty(len(stored), w2.shape[2]),
        torch.empty_like(weights),
    ),
)
_tokens_op = define(
    "moe_token_gradients",
    "(Tensor rows, Tensor topk_idx, Tensor w1) -> Tensor",
    token_gradients,
    lambda rows, idx, w1: rows.new_empty(len(idx), w1.shape[2]),
)
_PAIR = "Tensor rows, Tensor tokens, Tensor topk_idx, int experts, bool tokens_first"


def _fake_weights(rows: torch.Tensor, tokens: torch.Tensor, idx: torch.Tensor, experts: int, tokens_first: bool) -> torch.Tensor:
    shape = rows.shape[1], tokens.shape[1]
    return rows.new_empty(experts, *(shape[::-1] if tokens_first else shape))


_weights_op = define("moe_weight_gradients", f"({_PAIR}) -> Tensor", weight_gradients, _fake_weights)
_add_op = define("moe_add_weight_gradients", f"(Tensor(a!) total, {_PAIR}) -> ()", add_weight_gradients, lambda *_: None)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, w1_total, w2_total, ctx.gate_up, ctx.activation = inputs
    stored = output[1]
    ctx.save_for_backward(*tensors, stored)
    ctx.totals = w1_total, w2_total  # not among what is saved: every backward pass changes them
    ctx.mark_non_differentiable(stored)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: torch.Tensor | None, _: object) -> tuple[Any, ...]:
    x, idx, weights, w1, w2, stored = ctx.saved_tensors
    of_x, _, of_weights, of_w1, of_w2 = ctx.needs_input_grad[:5]
    if dy is None:
        return (None,) * 9
    if torch.is_grad_enabled():
        raise ProblemError("create_graph", True, "False: moe has no gradient of its gradients")
    if not len(x):
        needed = zip((x, idx, weights, w1, w2), ctx.needs_input_grad, strict=False)
        return (*(torch.zeros_like(one) if need else None for one, need in needed), None, None, None, None)
    dy = dy.contiguous()
    found = RowGradients(*_rows_op(dy, idx, weights, w2, stored, ctx.gate_up, ctx.activation))
    dx = _tokens_op(found.rows, idx, w1) if of_x else None
    dw1 = _of_weight(ctx.totals[0], (found.rows, x, idx, len(w1), False)) if of_w1 else None
    dw2 = _of_weight(ctx.totals[1], (found.weighted, dy, idx, len(w2), True)) if of_w2 else None
    return dx, None, found.topk_weights if of_weights else None, dw1, dw2, None, None, None, None


def _of_weight(total: torch.Tensor | None, operands: tuple[Any, ...]) -> torch.Tensor | None:
    if total is None:
        gradient: torch.Tensor = _weights_op(*operands)
        return gradient
    _add_op(total, *operands)
    return None


def define_training(forward: Any) -> Any:
    """The operator of `forward`, which gives y, and gate and up of every row."""
    tensors = "Tensor x, Tensor topk_idx, Tensor topk_weights, Tensor w1, Tensor w2, Tensor? w1_total, Tensor? w2_total"
    schema = f"({tensors}, str gate_up, str activation) -> (Tensor, Tensor)"

    def fake(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, w1: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), x.new_empty(idx.numel(), w1.shape[1])

    return differentiate(define("moe_training", schema, forward, fake), _backward, _keep)

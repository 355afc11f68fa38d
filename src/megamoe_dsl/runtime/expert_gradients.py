"""`moe` with gradients: operators of the forward pass that keeps gate and up, and of the stages of the backward pass.

Between the passes x, the routing, the weights and gate and up of every row are kept: 2 I BF16 values a row; or the backward pass computes
gate and up again.  The first stage makes dH, and w A, which stand until the gradients of tokens and weights are made.  A stage runs only
where somebody asks for what it makes.

CPU tensors take the reference (reference/expert_gradients.py), CUDA tensors kernels (device_gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..problem import Problem, ProblemError
from ..reference import expert_gradients as reference
from ..reference.expert_gradients import RowGradients
from ..reference.router import RouterMetadata, router_metadata
from . import device_gradients
from .buffers import check_tensor
from .cpu_experts import gate_then_up, rows_of_w1
from .custom_op import define, differentiate, is_plain_call

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


def _routing(ends: torch.Tensor, sources: torch.Tensor, positions: torch.Tensor) -> RouterMetadata:
    """Of the rows that there are."""
    return RouterMetadata(ends.diff(prepend=ends.new_zeros(1)), ends, sources[: int(ends[-1])], positions)


def _route(topk_idx: torch.Tensor, experts: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = router_metadata(topk_idx.where((topk_idx >= 0) & (topk_idx < experts), -1), experts)
    sources = found.sources.new_zeros(topk_idx.numel())
    sources[: len(found.sources)] = found.sources
    return found.ends, sources, found.positions


def _preactivations(x: torch.Tensor, w1: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
    routing, found = _routing(ends, sources, sources), x.new_zeros(len(sources), w1.shape[1])
    for expert, rows in enumerate(torch.arange(len(routing.sources)).split(routing.counts.tolist())):
        found[rows] = reference.dot(x[routing.sources[rows].long()], w1[expert]).bfloat16()
    return found


def _row_gradients(
    dy: torch.Tensor, topk_weights: torch.Tensor, w2: torch.Tensor, stored: torch.Tensor, *routed: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *rows_of, gate_up, activation = routed
    columns = (lambda rows: gate_then_up(rows, gate_up)), (lambda rows: rows_of_w1(rows, gate_up))
    found = reference.row_gradients(problem_of(activation), dy, _routing(*rows_of), topk_weights, w2, stored, columns)
    rows, weighted = torch.zeros_like(stored), stored.new_zeros(len(stored), w2.shape[2])
    rows[: len(found.rows)], weighted[: len(found.rows)] = found.rows, found.weighted
    return rows, weighted, found.topk_weights


def _token_gradients(rows: torch.Tensor, w1: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    routing = _routing(ends, positions.new_zeros(len(rows)), positions)
    return reference.token_gradients(rows[: len(routing.sources)], routing, w1)


def _weight_gradients(
    total: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, ends: torch.Tensor, sources: torch.Tensor, tokens_first: bool
) -> None:
    routing = _routing(ends, sources, sources)
    pair = rows[: len(routing.sources)], tokens[routing.sources.long()]
    sums = reference.weight_gradients(*(pair[::-1] if tokens_first else pair), routing)
    total.copy_(total + sums if total.dtype == torch.float32 else sums)


def _stage(schema: str, on_cpu: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """A stage as an operator; without one where nobody looks at operators.  On a GPU the function of `device_gradients` with its name."""
    name, _, arguments = schema.partition("(")

    def run(*given: Any) -> Any:
        return (on_cpu if given[0].device.type == "cpu" else getattr(device_gradients, name))(*given)

    operator = define(f"moe_{name}", f"({arguments}", run, fake)
    return lambda *given: (run if is_plain_call(given[0]) else operator)(*given)


_ROWS = "Tensor ends, Tensor sources"
route = _stage(
    "route(Tensor topk_idx, int experts, int hidden) -> (Tensor, Tensor, Tensor)",
    _route,
    lambda idx, experts, _: tuple(idx.new_empty(shape, dtype=torch.int32) for shape in (experts, idx.numel(), idx.shape)),
)
"""`ends`, `sources` and `positions` of `RouterMetadata`; the second has a number for every slot, of which those behind the last expert's
rows are nothing.  So are rows of what follows that no slot has."""
preactivations = _stage(
    f"preactivations(Tensor x, Tensor w1, {_ROWS}) -> Tensor",
    _preactivations,
    lambda x, w1, ends, sources: x.new_empty(len(sources), w1.shape[1]),
)
"""Gate and up, bfloat16 [tokens * topk, 2I], as the forward pass stores them."""
row_gradients = _stage(
    f"row_gradients(Tensor dy, Tensor topk_weights, Tensor w2, Tensor stored, {_ROWS}, Tensor positions, str gate_up, str activation)"
    " -> (Tensor, Tensor, Tensor)",
    _row_gradients,
    lambda dy, weights, w2, stored, *_: (torch.empty_like(stored), stored.new_empty(len(stored), w2.shape[2]), torch.empty_like(weights)),
)
"""dH, bfloat16 [tokens * topk, 2I], w A, bfloat16 [tokens * topk, I], and dw, float32 [tokens, topk]."""
token_gradients = _stage(
    "token_gradients(Tensor rows, Tensor w1, Tensor ends, Tensor positions) -> Tensor",
    _token_gradients,
    lambda rows, w1, ends, positions: rows.new_empty(len(positions), w1.shape[2]),
)
"""dX, bfloat16 [tokens, H], of rows dH."""
weight_gradients = _stage(
    f"weight_gradients(Tensor(a!) total, Tensor rows, Tensor tokens, {_ROWS}, bool tokens_first) -> ()",
    _weight_gradients,
    lambda *_: None,
)
"""The sum of rows^T tokens over the rows of each expert, with `tokens_first` its transpose, into bfloat16 [E, M, N]; or added to float32
without being rounded to BF16."""


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, w1_total, w2_total, ctx.recompute, ctx.gate_up, ctx.activation = inputs
    stored = output[1]
    ctx.save_for_backward(*tensors, stored)
    ctx.totals = w1_total, w2_total  # not among what is saved: every backward pass changes them
    ctx.mark_non_differentiable(stored)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: torch.Tensor | None, _: object) -> tuple[Any, ...]:
    x, idx, weights, w1, w2, stored = ctx.saved_tensors
    of_x, _, of_weights, of_w1, of_w2 = ctx.needs_input_grad[:5]
    if dy is None:
        return (None,) * 10
    if torch.is_grad_enabled():
        raise ProblemError("create_graph", True, "False: moe has no gradient of its gradients")
    if not len(x):
        needed = zip((x, idx, weights, w1, w2), ctx.needs_input_grad, strict=False)
        return (*(torch.zeros_like(one) if need else None for one, need in needed), *[None] * 5)
    dy = dy.contiguous()
    ends, sources, positions = route(idx, len(w1), w1.shape[2])
    stored = preactivations(x, w1, ends, sources) if ctx.recompute else stored
    found = RowGradients(*row_gradients(dy, weights, w2, stored, ends, sources, positions, ctx.gate_up, ctx.activation))
    dx = token_gradients(found.rows, w1, ends, positions) if of_x else None
    dw1 = _of_weight(w1, ctx.totals[0], (found.rows, x, ends, sources, False)) if of_w1 else None
    dw2 = _of_weight(w2, ctx.totals[1], (found.weighted, dy, ends, sources, True)) if of_w2 else None
    return dx, None, found.topk_weights if of_weights else None, dw1, dw2, *[None] * 5


def _of_weight(weight: torch.Tensor, total: torch.Tensor | None, operands: tuple[Any, ...]) -> torch.Tensor | None:
    gradient = torch.empty_like(weight) if total is None else total
    weight_gradients(gradient, *operands)
    return gradient if total is None else None


def define_training(forward: Any) -> Any:
    """The operator of `forward`, which gives y, and gate and up of every row, or with `recompute` of none."""
    tensors = "Tensor x, Tensor topk_idx, Tensor topk_weights, Tensor w1, Tensor w2, Tensor? w1_total, Tensor? w2_total"
    schema = f"({tensors}, bool recompute, str gate_up, str activation) -> (Tensor, Tensor)"

    def fake(
        x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, w1: torch.Tensor, *others: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        recompute = others[-3]
        return torch.empty_like(x), x.new_empty(0 if recompute else idx.numel(), w1.shape[1])

    return differentiate(define("moe_training", schema, forward, fake), _backward, _keep)

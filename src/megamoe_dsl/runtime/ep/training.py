"""Training across ranks in BF16: the two launches of `EpMoE` as autograd functions, each the transpose of the other.

    rows, w of rows = Dispatched(x, top-k weights, W1)       backward: combine of dH W1, which gives dX
    y = Combined(activated rows, w of rows, W2)              backward: dispatch of dY, multiplied by W2

Autograd differentiates the caller's activation in between.  Rows are those of a rank's experts, without the padding of the pool.  Between
the passes a call keeps each row's place and source, X of every row if W1 has a gradient, and what autograd keeps of the activation.

Every rank takes part in both passes.  The backward pass reads gradients of top-k weights from the other ranks' buffers with torch, between
two launches, when every rank has written them.  The host waits once, for the numbers of rows, before the forward pass is launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch

from ...blocks.gemm.problem import ALIGNED
from ...kernels.moe.halves.layouts.symmetric import ROW_BLOCK, first_rows
from ...problem import ProblemError
from ...quant import no_scales
from ..buffers import Inputs
from ..expert_gradients import MainGrads, of_weight, weight_gradients
from .buffers import Activation, EpBuffers
from .routing import RoutingTables

Tensors = list[torch.Tensor]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Totals = MainGrads | tuple[None, None]
NO_TOTALS: Totals = (None, None)


@dataclass(frozen=True)
class Routed:
    """Routing of a rank, for both passes.

    topk_idx  of this rank's tokens; `tables` say where they went
    rows      number of rows, without padding
    in_use    number of pool rows that hold them, with padding
    """

    topk_idx: torch.Tensor
    tables: RoutingTables
    rows: int
    in_use: int

    @classmethod
    def of(cls, buffers: EpBuffers, topk_idx: torch.Tensor) -> Self:
        """Call it before a dispatch, so that the host waits for the tables only."""
        tables = RoutingTables(*(one.clone() for one in vars(buffers.tables(len(topk_idx))).values()))
        counts = buffers.row_counts()
        return cls(topk_idx, tables, sum(counts), first_rows(counts)[-1])

    @cached_property
    def ends(self) -> torch.Tensor:
        """int32 [local experts]: where in the pool each expert's rows end."""
        padding = -self.tables.expert_rows % ROW_BLOCK
        return (self.tables.expert_rows + padding).cumsum(0, dtype=torch.int32) - padding

    @cached_property
    def places(self) -> torch.Tensor:
        """int64 [rows]: each row's place in the pool, by expert."""
        counts = self.tables.expert_rows
        before = (self.ends - counts.cumsum(0)).repeat_interleave(counts, output_size=self.rows)
        return before + torch.arange(self.rows, device=before.device)

    @cached_property
    def pool(self) -> torch.Tensor:
        """int64 [in_use]: the row in each place of the pool, 0 for padding."""
        return self.places.new_zeros(self.in_use).index_copy_(0, self.places, torch.arange(self.rows, device=self.places.device))

    def weight_gradient(
        self, weight: torch.Tensor, total: torch.Tensor | None, rows: torch.Tensor, tokens: torch.Tensor, tokens_first: bool
    ) -> torch.Tensor | None:
        """The gradient of a linear's weights from both operands in the pool; None if it is added to `total`."""
        own = rows, tokens, self.ends, torch.arange(self.in_use, dtype=torch.int32, device=rows.device), tokens_first, ALIGNED
        return of_weight(weight, total, self.rows, weight_gradients, *own)


@dataclass
class Call:
    """Both passes of one call.  Lists have an entry for each rank of this process.

    halves  the `EpMoE`, of one rank; in a simulation all ranks
    totals  tensors to which gradients of weights are added
    """

    halves: Any
    inputs: list[Inputs]
    totals: Sequence[Totals]
    routed: list[Routed] = field(default_factory=list)

    def sent_back(self, routed: Routed) -> torch.Tensor:
        """float32 [tokens, topk]: gradients of top-k weights that the rows of a rank's tokens have `sent`, 0 for masked slots.  Call it
        after a launch that waits for all ranks."""
        there, rows = torch.stack([*map(sent, self.halves.everywhere("fc1_acts"))]), routed.tables.pair_rows
        masked = rows < 0
        owners = (routed.topk_idx // self.halves.problem.experts_per_rank).masked_fill(masked, 0)
        return there[owners, rows.masked_fill(masked, 0)].masked_fill(masked, 0.0)


def sent(fc1_acts: torch.Tensor) -> torch.Tensor:
    """float32 [pool rows]: memory for gradients of rows' top-k weights, in place of tokens that the next dispatch overwrites."""
    return fc1_acts.view(torch.float32).flatten()[: len(fc1_acts)]


class Dispatched(torch.autograd.Function):
    """Gate and up of rows, and the top-k weights of the pool's rows."""

    @staticmethod
    def forward(ctx: Any, call: Call, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`given`: x, top-k weights and W1 of each rank, which are already in its symmetric buffer."""
        halves = call.halves
        call.routed = [Routed.of(one, inputs.topk_idx) for one, inputs in zip(halves.ranks, call.inputs, strict=True)]
        weights = [torch.empty(one.in_use, device=one.topk_idx.device) for one in call.routed]
        rows = halves.dispatch_rows(call.routed, weights)
        ctx.call = call
        kept = zip(halves.ranks, call.routed, ctx.needs_input_grad[1 + 2 * len(halves.ranks) :], strict=True)
        ctx.save_for_backward(*(one.view("fc1_acts")[: r.in_use].clone() if need else None for one, r, need in kept))
        if not halves.activates:
            rows = [pool[r.places] for pool, r in zip(rows, call.routed, strict=True)]
        return (*rows, *weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Runs after that of `Combined`, which leaves tables, destinations and weights of 1 in place."""
        call, halves = ctx.call, ctx.call.halves
        count = len(halves.ranks)
        for buffers, one in zip(halves.ranks, gradients[count:], strict=True):
            sent(buffers.view("fc1_acts"))[: len(one)].copy_(one)
        dx, rows = halves.combine_rows(call.routed, list(gradients[:count]), transposed=True)
        dw, dw1 = map(call.sent_back, call.routed), []
        kept = zip(call.totals, call.routed, ctx.saved_tensors, rows, ctx.needs_input_grad[1 + 2 * count :], strict=True)
        for buffers, (total, routed, x, dh, need) in zip(halves.ranks, kept, strict=True):
            dw1.append(routed.weight_gradient(buffers.weights.fc1, total[0], dh, x, False) if need else None)
        return (None, *dx, *dw, *dw1)


class Combined(torch.autograd.Function):
    """y of each rank, of activated rows and the pool's top-k weights."""

    @staticmethod
    def forward(ctx: Any, call: Call, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`given`: activated rows, their top-k weights, and W2 of each rank."""
        count = len(call.routed)
        ctx.call = call
        ctx.save_for_backward(*given[: 2 * count])
        return tuple(call.halves.combine_rows(call.routed, list(given[:count]))[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dys: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the rows, of their top-k weights, and of W2."""
        call, halves = ctx.call, ctx.call.halves
        count = len(dys)
        acts, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        for buffers, routed, dy in zip(halves.ranks, call.routed, dys, strict=True):
            ones = torch.ones(routed.topk_idx.shape, device=dy.device)
            buffers.store(Inputs(dy.contiguous(), no_scales(dy), routed.topk_idx, ones), routed.tables)
        da, dw, dw2 = [], [], []
        if halves.activates:
            found = halves.dispatch_gradients(list(acts), list(weights))
        else:
            pools = halves.dispatch_rows(call.routed)
            found = [unweighted(pool, a, w, r) for pool, r, a, w in zip(pools, call.routed, acts, weights, strict=True)]
        kept = zip(call.totals, call.routed, found, ctx.needs_input_grad[1 + 2 * count :], strict=True)
        for buffers, (total, routed, (gradient, weighted, of_weights), need) in zip(halves.ranks, kept, strict=True):
            da.append(gradient)
            dw.append(of_weights)
            dw2.append(routed.weight_gradient(buffers.weights.fc2, total[1], weighted, buffers.view("fc1_acts"), True) if need else None)
        return (None, *da, *dw, *dw2)


def unweighted(pool: torch.Tensor, acts: torch.Tensor, weights: torch.Tensor, routed: Routed) -> Gradients:
    """From dY W2 (`pool`): gradients of activated rows, activated rows times their weights by pool row, and gradients of the weights."""
    raw, acts, factors = pool[: routed.in_use], acts[routed.pool], weights[:, None]
    gradient, weighted = (torch.mul(one, factors, out=torch.empty_like(one)) for one in (raw, acts))  # in FP32, rounded once, no copies
    return gradient[routed.places], weighted, raw.float().mul_(acts).sum(dim=1)


def train(halves: Any, inputs: list[Inputs], activations: Sequence[Activation | None], totals: Sequence[Totals] | None = None) -> Tensors:
    """y of each rank, with a backward pass that adds gradients of weights to `totals`, if given.  Tokens and tables are already in the
    symmetric buffers.  An activation is None if the launches activate.  Raises `ProblemError` for one that changes shape or dtype."""
    count = len(inputs)
    call = Call(halves, inputs, totals or [NO_TOTALS] * count)
    weights = [(one.weights.fc1, one.weights.fc2) for one in halves.ranks]
    # Other ranks wait for this rank's backward pass, so there always is one.
    x = [one.x if one.x.requires_grad else one.x.detach().requires_grad_() for one in inputs]
    found = Dispatched.apply(call, *x, *(one.topk_weights for one in inputs), *(fc1 for fc1, _ in weights))  # type: ignore[no-untyped-call]
    acts = [rows if activation is None else activation(rows) for activation, rows in zip(activations, found[:count], strict=True)]
    for one, rows, activation in zip(acts, found[:count], activations, strict=True):
        fits = one.shape == (len(rows), halves.problem.intermediate) and one.dtype == torch.bfloat16
        if not (fits or activation is None):
            raise ProblemError("activation", (one.dtype, tuple(one.shape)), f"bfloat16 ({len(rows)}, {halves.problem.intermediate})")
    return list(Combined.apply(call, *acts, *found[count:], *(fc2 for _, fc2 in weights)))  # type: ignore[no-untyped-call]

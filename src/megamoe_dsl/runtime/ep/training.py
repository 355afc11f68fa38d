"""Training across ranks in BF16: the two launches of `EpMoE` as autograd functions, each the transpose of the other.

    rows, w of rows = Dispatched(x, top-k weights, W1)       backward: combine of dH W1, which gives dX
    y = Combined(activated rows, w of rows, W2)              backward: dispatch of dY, multiplied by W2

Autograd differentiates the caller's activation in between.  Rows are those of a rank's experts, without the padding of the pool.  Between
the passes a call keeps each row's place and source, X of every row if W1 has a gradient, and what autograd keeps of the activation.

Every rank takes part in both passes.  The backward pass reads gradients of top-k weights from the other ranks' buffers with torch, between
two launches, when every rank has written them.  The host waits once, for the numbers of rows, before the forward pass is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """Both passes of one call of an `EpMoE`; the backward pass adds gradients of weights to `totals`, if given."""

    layer: Any
    inputs: Inputs
    totals: Totals
    routed: Routed

    def sent_back(self) -> torch.Tensor:
        """float32 [tokens, topk]: gradients of top-k weights that the rows of this rank's tokens have `sent`, 0 for masked slots.  Call it
        after a launch that waits for all ranks."""
        there, rows = torch.stack([*map(sent, self.layer.everywhere("fc1_acts"))]), self.routed.tables.pair_rows
        masked = rows < 0
        owners = (self.routed.topk_idx // self.layer.problem.experts_per_rank).masked_fill(masked, 0)
        return there[owners, rows.masked_fill(masked, 0)].masked_fill(masked, 0.0)


def sent(fc1_acts: torch.Tensor) -> torch.Tensor:
    """float32 [pool rows]: memory for gradients of rows' top-k weights, in place of tokens that the next dispatch overwrites."""
    return fc1_acts.view(torch.float32).flatten()[: len(fc1_acts)]


class Dispatched(torch.autograd.Function):
    """Gate and up of rows, and the top-k weights of the pool's rows."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: torch.Tensor, topk_weights: torch.Tensor, w1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tensors are already in the symmetric buffer."""
        layer, routed = call.layer, call.routed
        weights = torch.empty(routed.in_use, device=x.device)
        rows = layer.dispatch_rows(routed, weights)
        ctx.call = call
        ctx.save_for_backward(layer.memory.view("fc1_acts")[: routed.in_use].clone() if ctx.needs_input_grad[3] else None)
        return rows if layer.activates else rows[routed.places], weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_rows: torch.Tensor, of_weights: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Runs after that of `Combined`, which leaves tables, destinations and weights of 1 in place."""
        call, memory, (x,) = ctx.call, ctx.call.layer.memory, ctx.saved_tensors
        sent(memory.view("fc1_acts"))[: len(of_weights)].copy_(of_weights)
        dx, dh = call.layer.combine_rows(call.routed, of_rows, transposed=True)
        dw = call.sent_back()
        dw1 = call.routed.weight_gradient(memory.weights.fc1, call.totals[0], dh, x, False) if ctx.needs_input_grad[3] else None
        return None, dx, dw, dw1


class Combined(torch.autograd.Function):
    """y, of activated rows and the pool's top-k weights."""

    @staticmethod
    def forward(ctx: Any, call: Call, acts: torch.Tensor, weights: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        ctx.save_for_backward(acts, weights)
        y: torch.Tensor = call.layer.combine_rows(call.routed, acts)[0]
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the rows, of their top-k weights, and of W2."""
        layer, routed, (acts, weights) = ctx.call.layer, ctx.call.routed, ctx.saved_tensors
        memory, ones = layer.memory, torch.ones(routed.topk_idx.shape, device=dy.device)
        memory.store(Inputs(dy.contiguous(), no_scales(dy), routed.topk_idx, ones), routed.tables)
        if layer.activates:
            of_rows, weighted, of_weights = layer.dispatch_gradients(acts, weights)
        else:
            of_rows, weighted, of_weights = unweighted(layer.dispatch_rows(routed), acts, weights, routed)
        dw2, total = None, ctx.call.totals[1]
        if ctx.needs_input_grad[3]:
            dw2 = routed.weight_gradient(memory.weights.fc2, total, weighted, memory.view("fc1_acts"), True)
        return None, of_rows, of_weights, dw2


def unweighted(pool: torch.Tensor, acts: torch.Tensor, weights: torch.Tensor, routed: Routed) -> Gradients:
    """From dY W2 (`pool`): gradients of activated rows, activated rows times their weights by pool row, and gradients of the weights."""
    raw, acts, factors = pool[: routed.in_use], acts[routed.pool], weights[:, None]
    gradient, weighted = (torch.mul(one, factors, out=torch.empty_like(one)) for one in (raw, acts))  # in FP32, rounded once, no copies
    return gradient[routed.places], weighted, raw.float().mul_(acts).sum(dim=1)


def train(layer: Any, inputs: Inputs, activation: Activation | None, totals: Totals = NO_TOTALS) -> torch.Tensor:
    """y of an `EpMoE`, with a backward pass.  Tokens and tables are already in the symmetric buffer; the activation is None if the launches
    activate.  Raises `ProblemError` for one that changes shape or dtype."""
    call, weights = Call(layer, inputs, totals, Routed.of(layer.memory, inputs.topk_idx)), layer.memory.weights
    # Other ranks wait for this rank's backward pass, so there always is one.
    x = inputs.x if inputs.x.requires_grad else inputs.x.detach().requires_grad_()
    rows, row_weights = Dispatched.apply(call, x, inputs.topk_weights, weights.fc1)  # type: ignore[no-untyped-call]
    acts, shape = rows if activation is None else activation(rows), (len(rows), layer.problem.intermediate)
    if activation is not None and (tuple(acts.shape) != shape or acts.dtype != torch.bfloat16):
        raise ProblemError("activation", (acts.dtype, tuple(acts.shape)), f"bfloat16 {shape}")
    y: torch.Tensor = Combined.apply(call, acts, row_weights, weights.fc2)  # type: ignore[no-untyped-call]
    return y

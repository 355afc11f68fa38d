"""Training across ranks, in BF16: the two launches of `EpMoE` as autograd functions, of which each is the other's transpose.

    rows, w of rows = Dispatched(x, top-k weights, W1)       its backward pass combines dH W1, which is dX
    y = Combined(activated rows, w of rows, W2)              its backward pass dispatches dY, and multiplies it with W2

Between them autograd follows the caller's activation.  Rows are those of a rank's experts without the padding of the pool.  Between the
passes a call keeps X of every row, its place in the pool and its source, and what autograd keeps of the activation.

Every rank takes part in both passes.  The top-k weights of rows, and in the backward pass their gradients, are small: torch reads and
writes them in the other ranks' buffers between two launches, where each rank has read what a launch needs and waits for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

import torch

from ...layouts.region import Region
from ...problem import Problem, ProblemError
from ...quant import no_scales
from ..buffers import Inputs
from ..expert_gradients import MainGrads, add_rows, of_weight
from .buffers import Activation, EpBuffers
from .routing import RoutingTables

Tensors = list[torch.Tensor]
Totals = MainGrads | tuple[None, None]
NO_TOTALS: Totals = (None, None)


class Halves(Protocol):
    """The launches of the ranks of this process: one of an `EpMoE`, all of simulated ones.  Lists have an entry for each of them.

    peers      int64: the address of every rank's symmetric buffer
    activates  whether the launches activate gate and up: rows of both passes then stay in the pool
    """

    problem: Problem
    ranks: list[EpBuffers]
    peers: torch.Tensor
    activates: bool

    @property
    def everywhere(self) -> Tensors:
        """The symmetric buffer of every rank of the group."""

    def dispatch_rows(self, routed: list[Routed], transposed: bool = False) -> Tensors:
        """Tokens to the ranks of their experts, and the linear of them: rows of the pool.  Where that activates them, gate and up."""

    def dispatch_gradients(self, gate_up: Tensors, row_weights: Tensors) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Where launches activate: gradients of y to the ranks of their experts; of each rank the gradients of gate and up, the activated
        rows times their weights, and the gradients of these weights, all by rows of the pool."""

    def combine_rows(self, routed: list[Routed], rows: Tensors, transposed: bool = False) -> Tensors:
        """The linear of rows, packed unless launches activate, and the sums of each rank's tokens."""


@dataclass
class Routed:
    """What both passes have to know of a rank's rows.

    topk_idx  of this rank's tokens, with the tables that say where they went
    places    int64 [rows]: where in the pool they are, by expert
    pool      int64 [rows of the pool that are in use]: which of these rows lies there; where none does, the first
    ends      int32 [local experts]: where each expert's rows end
    sources   after a dispatch: for each rank of the group, which of these rows it sent, and of which pair (token * topk + slot)
    """

    topk_idx: torch.Tensor
    tables: RoutingTables
    places: torch.Tensor
    pool: torch.Tensor
    ends: torch.Tensor
    sources: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, buffers: EpBuffers, topk_idx: torch.Tensor) -> Self:
        """Before a dispatch, for which the host does not wait then; waits for the tables."""
        tables, slices, device = buffers.tables(len(topk_idx)), buffers.expert_slices(), topk_idx.device
        starts, counts = torch.tensor([(one.start, one.stop - one.start) for one in slices], device=device).T
        ends, total = counts.cumsum(0), sum(one.stop - one.start for one in slices)
        gaps = (starts - ends + counts).repeat_interleave(counts, output_size=total)
        numbers = torch.arange(total, device=device)
        pool = numbers.new_zeros(slices[-1].stop)
        pool[numbers + gaps] = numbers
        return cls(topk_idx, RoutingTables(*(one.clone() for one in vars(tables).values())), numbers + gaps, pool, ends.int())

    def find_sources(self, buffers: EpBuffers, peers: torch.Tensor) -> None:
        """After a dispatch, for which the host waits."""
        results = buffers.region["results"]
        pairs, width = results.field.shape
        offsets = buffers.view("destinations")[self.places] - peers[:, None] - results.offset
        here = (offsets >= 0) & (offsets < pairs * width * 2)
        ranks, rows = here.nonzero(as_tuple=True)
        sent = here.sum(dim=1).tolist()
        self.sources = list(zip(rows.split(sent), (offsets[ranks, rows] // (width * 2)).split(sent), strict=True))


@dataclass
class Call:
    """Both passes of one call; `totals` are what gradients of weights are added to, of each rank."""

    halves: Halves
    inputs: list[Inputs]
    totals: Sequence[Totals]
    routed: list[Routed] = field(default_factory=list)

    def packed(self, rows: torch.Tensor, routed: Routed) -> torch.Tensor:
        """By expert, of rows, or numbers of them, that lie in the pool where launches activate."""
        return rows[routed.places] if self.halves.activates else rows.contiguous()

    def view(self, sym: torch.Tensor, name: str) -> torch.Tensor:
        """A field of any rank."""
        region: Region = self.halves.ranks[0].region
        return region.view(sym, name)

    def weights_of_rows(self, routed: Routed) -> torch.Tensor:
        """float32 [rows]: from the ranks that have sent them."""
        found = torch.empty(len(routed.places), device=routed.places.device)
        for sym, (rows, pairs) in zip(self.halves.everywhere, routed.sources, strict=True):
            found[rows] = self.view(sym, "topk_weights").flatten()[pairs]
        return found

    def send_back(self, routed: Routed, of_rows: torch.Tensor) -> None:
        """A number of each row to its source, in whose x nobody reads before the next dispatch."""
        topk = self.halves.problem.topk
        for sym, (rows, pairs) in zip(self.halves.everywhere, routed.sources, strict=True):
            self.sent_back(sym)[pairs // topk, pairs % topk] = of_rows[rows]

    def sent_back(self, sym: torch.Tensor) -> torch.Tensor:
        """float32 [tokens, H / 2]: slot by slot what the rows of a rank's tokens have sent."""
        return self.view(sym, "x").view(torch.float32)


class Dispatched(torch.autograd.Function):
    """Rows of gate and up, and their top-k weights."""

    @staticmethod
    def forward(ctx: Any, call: Call, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`given`: x, top-k weights and W1 of each rank, which are in its symmetric buffer by now."""
        halves = call.halves
        call.routed = [Routed.of(one, inputs.topk_idx) for one, inputs in zip(halves.ranks, call.inputs, strict=True)]
        rows = halves.dispatch_rows(call.routed)
        ctx.call = call
        ctx.save_for_backward(*(one.view("fc1_acts")[r.places] for one, r in zip(halves.ranks, call.routed, strict=True)))
        if not halves.activates:
            rows = [pool[r.places] for pool, r in zip(rows, call.routed, strict=True)]
        for one, r in zip(halves.ranks, call.routed, strict=True):
            r.find_sources(one, halves.peers)
        return (*rows, *map(call.weights_of_rows, call.routed))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Follows that of `Combined`, which has left tables, destinations, and weights of 1 in place."""
        call, halves = ctx.call, ctx.call.halves
        count = len(halves.ranks)
        rows, of_weights = gradients[:count], gradients[count:]
        for routed, one in zip(call.routed, of_weights, strict=True):
            call.send_back(routed, one)
        dx = halves.combine_rows(call.routed, list(rows), transposed=True)
        sent_back = (call.sent_back(one.sym)[: len(y), : halves.problem.topk] for one, y in zip(halves.ranks, dx, strict=True))
        dw = [one.masked_fill(routed.tables.pair_rows < 0, 0.0) for one, routed in zip(sent_back, call.routed, strict=True)]
        dw1 = []
        kept = zip(call.totals, call.routed, ctx.saved_tensors, rows, ctx.needs_input_grad[1 + 2 * count :], strict=True)
        for buffers, (total, routed, x, dh, need) in zip(halves.ranks, kept, strict=True):
            own = call.packed(dh, routed), x, routed.ends, torch.arange(len(x), dtype=torch.int32, device=x.device), False
            dw1.append(of_weight(buffers.weights.fc1, total[0], len(x), partial(add_rows, own)) if need else None)
        return (None, *dx, *dw, *dw1)


class Combined(torch.autograd.Function):
    """y of each rank, of activated rows and their top-k weights."""

    @staticmethod
    def forward(ctx: Any, call: Call, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`given`: activated rows, or what the launches have activated, their top-k weights, and W2 of each rank."""
        count = len(call.routed)
        ctx.call = call
        ctx.save_for_backward(*given[: 2 * count])
        return tuple(call.halves.combine_rows(call.routed, list(given[:count])))

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
            of_pool = [w.new_zeros(len(r.pool)).index_copy_(0, r.places, w) for w, r in zip(weights, call.routed, strict=True)]
            found = halves.dispatch_gradients(list(acts), of_pool)
        else:
            pools = halves.dispatch_rows(call.routed, transposed=True)
            found = [unweighted(pool[r.places], a, w) for pool, r, a, w in zip(pools, call.routed, acts, weights, strict=True)]
        kept = zip(call.totals, call.routed, found, ctx.needs_input_grad[1 + 2 * count :], strict=True)
        for buffers, (total, routed, (gradient, weighted, of_weights), need) in zip(halves.ranks, kept, strict=True):
            da.append(gradient)
            dw.append(call.packed(of_weights, routed))
            own = call.packed(weighted, routed), buffers.view("fc1_acts"), routed.ends, routed.places.int(), True
            dw2.append(of_weight(buffers.weights.fc2, total[1], len(routed.places), partial(add_rows, own)) if need else None)
        return (None, *da, *dw, *dw2)


def unweighted(raw: torch.Tensor, acts: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of activated rows, these times their weights, and gradients of the weights, from dY W2 (`raw`)."""
    factors = weights[:, None]  # products in FP32, rounded once, without copies in FP32
    gradient, weighted = (torch.mul(one, factors, out=torch.empty_like(one)) for one in (raw, acts))
    return gradient, weighted, raw.float().mul_(acts).sum(dim=1)


def train(
    halves: Halves, inputs: list[Inputs], activations: Sequence[Activation | None], totals: Sequence[Totals] | None = None
) -> Tensors:
    """y of each rank, whose tokens and tables are in its symmetric buffer, with a backward pass, which adds gradients of weights to
    `totals` where there are any.  An activation is None where the launches activate.  Raises `ProblemError` for one that changes the number
    of rows."""
    count = len(inputs)
    call = Call(halves, inputs, totals or [NO_TOTALS] * count)
    weights = [(one.weights.fc1, one.weights.fc2) for one in halves.ranks]
    # Other ranks wait for this one's part of the backward pass.
    x = [one.x if one.x.requires_grad else one.x.detach().requires_grad_() for one in inputs]
    found = Dispatched.apply(call, *x, *(one.topk_weights for one in inputs), *(fc1 for fc1, _ in weights))  # type: ignore[no-untyped-call]
    acts = [rows if activation is None else activation(rows) for activation, rows in zip(activations, found[:count], strict=True)]
    for one, rows, activation in zip(acts, found[:count], activations, strict=True):
        fits = one.shape == (len(rows), halves.problem.intermediate) and one.dtype == torch.bfloat16
        if not (fits or activation is None):
            raise ProblemError("activation", (one.dtype, tuple(one.shape)), f"bfloat16 ({len(rows)}, {halves.problem.intermediate})")
    return list(Combined.apply(call, *acts, *found[count:], *(fc2 for _, fc2 in weights)))  # type: ignore[no-untyped-call]

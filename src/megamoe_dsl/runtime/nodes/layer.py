"""A layer whose experts are spread over nodes: rows to nodes, the layer of a domain on each, rows of results back, and their sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...problem import Problem, ProblemError
from ...quant import ExpertWeights, blocks_of, dequantize_e4m3, quantize_e4m3
from ..buffers import check_tensor
from ..custom_op import check_no_gradient
from ..domain import domain_layer
from ..ep.buffers import quantize_rows
from .rails import Exchange, Rails, row_bytes, split_rows


class NodeLayer(torch.nn.Module):
    """As `MegaMoE`, over the nodes of `rails`; y is the sum of nodes' results, each rounded as the layer of one domain rounds y, in FP32 in
    the order of nodes.

    problem  over all ranks: topk is at most the experts of a node
    chunks   parts of a call's tokens
    """

    def __init__(
        self, problem: Problem, weights: ExpertWeights | None, rails: Rails, chunks: int, device: torch.device, **others: Any
    ) -> None:
        super().__init__()
        if chunks < 1:
            raise ProblemError("chunks", chunks, "1 or more")
        self.problem, self.rails, self.chunks = problem, rails, chunks
        self.node_experts = problem.num_experts // rails.nodes
        if problem.topk > self.node_experts:
            raise ProblemError("topk", problem.topk, f"at most the {self.node_experts} experts of a node")
        most = -(-problem.max_tokens_per_rank // chunks) * rails.nodes
        self.domain = replace(problem, num_experts=self.node_experts, num_ranks=rails.ranks, max_tokens_per_rank=most)
        made = domain_layer(self.domain, weights, rails.within, device, **others)
        self.experts, self.takes_scales, self.takes_bound = made.experts, made.takes_scales, made.takes_bound

    @property
    def device(self) -> torch.device:
        """Where the rank's experts are."""
        return self.experts.device

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """As `MegaMoE.load_expert`."""
        self.experts.load_expert(index, weights)

    def forward(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """y of this rank's tokens.  Every rank makes the same sequence of calls; the host waits for counts of rows, once in a call.

        Raises `ProblemError` before anything is sent, and `WatchdogError`, which names the lost ranks, when a collective fails."""
        check_no_gradient(("x", "topk_weights"), (x, topk_weights))
        self.problem.check_num_tokens(len(x), "x.shape[0]")
        check_tensor("x", x, torch.bfloat16, (len(x), self.problem.hidden))
        check_tensor("topk_idx", topk_idx, (torch.int64, torch.int32), (len(x), self.problem.topk))
        check_tensor("topk_weights", topk_weights, torch.float32, (len(x), self.problem.topk))
        rows = quantize_rows(x, self.problem.formats.activations) if self.takes_scales else (x,)
        parts = (*rows, topk_idx.int(), topk_weights)
        plan = self.plan(topk_idx)
        sent = row_bytes(parts)
        there = [self.dispatch(plan, sent, 0)]
        back = []
        for chunk in range(self.chunks):
            if chunk + 1 < self.chunks:
                there.append(self.dispatch(plan, sent, chunk + 1))
            back.append(self.compute(plan, parts, there[chunk].wait(), chunk))
        return self.total(plan, back, x)

    def plan(self, topk_idx: torch.Tensor) -> Plan:
        """Which tokens go to which node in which chunk, and how many rows come."""
        nodes, tokens = self.rails.nodes, len(topk_idx)
        node_of = torch.where(topk_idx >= 0, topk_idx // self.node_experts, -1)
        wanted = torch.stack([(node_of == node).any(dim=1) for node in range(nodes)])
        size = -(-tokens // self.chunks)
        where = []
        for chunk in range(self.chunks):
            first = min(chunk * size, tokens)
            where.append([one.nonzero().flatten() + first for one in wanted[:, first : first + size]])
        own = torch.tensor([[len(one) for one in chunk] for chunk in where])
        every = self.rails.gather_counts(own)
        here = every[:, :, :, self.rails.node]  # rows that come to each rank of this node, from each node
        receive = here[:, self.rails.number].T.tolist()
        return Plan(where, own.tolist(), receive, here.sum(dim=0).amax(dim=0).tolist())

    def dispatch(self, plan: Plan, sent: torch.Tensor, chunk: int) -> Exchange:
        """Begins to send a chunk's rows."""
        rows, send = sent[torch.cat(plan.tokens[chunk])], plan.send[chunk]
        self.rails.traffic.rows += self.rails.away(send)
        self.rails.traffic.dispatched += self.rails.away(send) * rows.shape[1]
        return self.rails.exchange(rows, send, plan.receive[chunk])

    def compute(self, plan: Plan, parts: tuple[torch.Tensor, ...], rows: torch.Tensor, chunk: int) -> Exchange:
        """The domain's layer of the rows that came, whose results begin to travel back."""
        *tokens, idx, weights = split_rows(rows, parts)
        local = idx - self.rails.node * self.node_experts
        local = local.where((local >= 0) & (local < self.node_experts), -1)
        bound = {"num_tokens_bound": plan.bounds[chunk]} if self.takes_bound else {}
        scales = {"x_sf": tokens[1]} if self.takes_scales else {}
        y = self.experts(tokens[0], local, weights, **scales, **bound)
        found = self.as_sent(y)
        self.rails.traffic.returned += self.rails.away(plan.receive[chunk]) * found.shape[1]
        return self.rails.exchange(found, plan.receive[chunk], plan.send[chunk])

    def as_sent(self, y: torch.Tensor) -> torch.Tensor:
        """Rows of results as bytes: BF16, or E4M3 with a UE8M0 scale per 128 channels, as `combine` of the problem says."""
        form = self.problem.formats.combine
        return row_bytes((y,) if form.scale is None else quantize_e4m3(blocks_of(y, form.channels).flatten(1), form.channels, check=False))

    def as_received(self, rows: torch.Tensor) -> torch.Tensor:
        """FP32 [rows, hidden] of these bytes."""
        form, hidden = self.problem.formats.combine, self.problem.hidden
        if form.scale is None:
            return rows.view(torch.bfloat16).float()
        padded = -(-hidden // form.channels) * form.channels
        return dequantize_e4m3(rows[:, :padded].contiguous(), rows[:, padded:].contiguous(), form.channels).float()[:, :hidden]

    def total(self, plan: Plan, back: list[Exchange], x: torch.Tensor) -> torch.Tensor:
        """y, from rows of results in the order of nodes."""
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for chunk, exchange in enumerate(back):
            found = self.as_received(exchange.wait()).split(plan.send[chunk])
            for tokens, rows in zip(plan.tokens[chunk], found, strict=True):
                total[tokens] += rows
        return total.bfloat16()


class Plan:
    """Rows of a call, by chunk and node.

    tokens   numbers of this rank's tokens
    send, receive  rows to and from each node
    bounds   the most rows that come to a rank of this node
    """

    def __init__(self, tokens: list[list[torch.Tensor]], send: list[list[int]], receive: list[list[int]], bounds: list[int]) -> None:
        self.tokens, self.send, self.receive, self.bounds = tokens, send, receive, bounds

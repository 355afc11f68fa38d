"""The layer in torch alone, as a far baseline: BF16 weights and tokens, `all_to_all_single` and `grouped_mm`, one launch after another.

What someone writes who has no kernel for it.  Sizes of the exchanges must be known on the host, so every call with several ranks waits for
the GPU once, and none can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from baselines.baseline import require_plain
from megamoe_dsl.cases import TokenInputs
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, dequantize_e4m3_f32, dequantize_weight_e4m3


@dataclass(frozen=True)
class ReceivedRows:
    """Rows that a rank has of its experts, one expert after another, which end at `ends`.

    sent     slots by expert, in the order in which they were sent
    order    by expert, of the rows as they came; None on one rank, where none travel
    incoming, outgoing   rows from each rank, and to each
    """

    rows: torch.Tensor
    ends: torch.Tensor
    sent: torch.Tensor
    order: torch.Tensor | None = None
    incoming: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()


Exchange = Callable[[torch.Tensor, Sequence[int], Sequence[int]], torch.Tensor]
"""Rows of all ranks for this one, from its own for all, with how many it receives and sends."""


def exchanged(rows: torch.Tensor, incoming: Sequence[int], outgoing: Sequence[int]) -> torch.Tensor:
    found = rows.new_empty(sum(incoming), rows.shape[1])
    dist.all_to_all_single(found, rows, list(incoming), list(outgoing))
    return found


class TorchLayer:
    """One rank's share; weights of fp8xfp8 are expanded to BF16, those of bf16xbf16 are used as they are.  Routing has no masked slots.

    With an `exchange` that has a gradient `result` has one, too."""

    def __init__(self, problem: Problem, weights: ExpertWeights, exchange: Exchange = exchanged) -> None:
        require_plain(problem)
        self.problem, self.exchange = problem, exchange
        pairs = (weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf)
        both = (expand(*one) if problem.formats.scaled else one[0] for one in pairs)
        self.fc1, self.fc2 = (one.transpose(-2, -1) for one in both)

    def load(self, inputs: TokenInputs) -> None:
        """x [T, H] in BF16, the experts of every slot and their weights [T, topk]."""
        self.x = dequantize_e4m3_f32(inputs.x, inputs.x_sf).bfloat16() if self.problem.formats.scaled else inputs.x
        self.experts, self.weights = inputs.topk_idx.flatten(), inputs.topk_weights.flatten()

    def __call__(self, y: torch.Tensor) -> None:
        """Writes y [T, H] in BF16; all ranks together."""
        y.copy_(self.result())

    def result(self) -> torch.Tensor:
        """y [T, H] in FP32; all ranks together."""
        received, rows = self.dispatch()
        return self.sums(received, self.activate(rows))

    def dispatch(self) -> tuple[ReceivedRows, torch.Tensor]:
        """Tokens to the ranks of their experts, and Linear1 of them; all ranks together."""
        received = self.receive()
        return received, F.grouped_mm(received.rows, self.fc1, offs=received.ends)

    def receive(self) -> ReceivedRows:
        """A row for each slot to the rank of its expert."""
        p = self.problem
        order = self.experts.argsort(stable=True)  # slots by expert, so by rank too
        sent = self.x[order // p.topk]
        counts = torch.zeros(p.num_experts, dtype=torch.int64, device=sent.device)
        counts.scatter_add_(0, self.experts, torch.ones_like(self.experts, dtype=torch.int64))
        if p.num_ranks == 1:
            return ReceivedRows(sent, ends_of(counts), order)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        outgoing, incoming = torch.stack([one.view(p.num_ranks, -1).sum(1) for one in (counts, arriving)]).tolist()
        received = self.exchange(sent, incoming, outgoing)
        local = torch.arange(p.experts_per_rank, device=sent.device).repeat(p.num_ranks)
        by_expert = local.repeat_interleave(arriving, output_size=sum(incoming)).argsort(stable=True)
        ends = ends_of(arriving.view(p.num_ranks, -1).sum(0))
        return ReceivedRows(received[by_expert], ends, order, by_expert, tuple(incoming), tuple(outgoing))

    def activate(self, rows: torch.Tensor) -> torch.Tensor:
        """SwiGLU of gate and up side by side, limited where the problem says so."""
        gate, up = rows.chunk(2, dim=-1)
        clamp = self.problem.activation_clamp
        if clamp is not None:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        return F.silu(gate) * up

    def combine(self, received: ReceivedRows, acts: torch.Tensor, y: torch.Tensor) -> None:
        """Linear2, its results to the ranks of their tokens, and their sums into y; all ranks together."""
        y.copy_(self.sums(received, acts))

    def sums(self, received: ReceivedRows, acts: torch.Tensor) -> torch.Tensor:
        results = F.grouped_mm(acts, self.fc2, offs=received.ends)
        if received.order is not None:
            sorted_results, results = results, torch.empty_like(results)
            results[received.order] = sorted_results
            results = self.exchange(results, received.outgoing, received.incoming)
        total = torch.zeros(self.x.shape, dtype=torch.float32, device=self.x.device)
        return total.index_add_(0, received.sent // self.problem.topk, results.float() * self.weights[received.sent, None])


def ends_of(counts: torch.Tensor) -> torch.Tensor:
    """Where the rows of each expert end."""
    return counts.cumsum(0).int()


def expand(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """In BF16, an expert at a time."""
    return torch.stack([dequantize_weight_e4m3(one, sf).bfloat16() for one, sf in zip(codes, scales, strict=True)])

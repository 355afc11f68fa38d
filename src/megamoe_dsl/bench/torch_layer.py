"""The layer in torch alone, as a far baseline: BF16 weights and tokens, `all_to_all_single` and `grouped_mm`, one launch after another.

What someone writes who has no kernel for it.  Sizes of the exchanges must be known on the host, so every call with several ranks waits for
the GPU once, and none can be captured in a graph.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ..cases import TokenInputs
from ..problem import Problem
from ..quant import ExpertWeights, dequantize_e4m3_f32, dequantize_weight_e4m3
from .baselines.baseline import require_plain


class TorchLayer:
    """One rank's share; weights are of fp8xfp8, expanded to BF16.  Routing has no masked slots."""

    def __init__(self, problem: Problem, weights: ExpertWeights) -> None:
        require_plain(problem)
        self.problem = problem
        self.fc1 = expand(weights.fc1, weights.fc1_sf).transpose(-2, -1)
        self.fc2 = expand(weights.fc2, weights.fc2_sf).transpose(-2, -1)

    def load(self, inputs: TokenInputs) -> None:
        """x [T, H] in BF16, the experts of every slot and their weights [T, topk]."""
        self.x = dequantize_e4m3_f32(inputs.x, inputs.x_sf).bfloat16()
        self.experts, self.weights = inputs.topk_idx.flatten(), inputs.topk_weights.flatten()

    def __call__(self, y: torch.Tensor) -> None:
        """Writes y [T, H] in BF16; all ranks together."""
        order = self.experts.argsort(stable=True)  # slots by expert, so by rank too
        sent = self.x[order // self.problem.topk]
        counts = torch.zeros(self.problem.num_experts, dtype=torch.int64, device=y.device)
        counts.scatter_add_(0, self.experts, torch.ones_like(self.experts, dtype=torch.int64))
        results = self.compute(sent, counts) if self.problem.num_ranks == 1 else self.exchange(sent, counts)
        total = torch.zeros(y.shape, dtype=torch.float32, device=y.device)
        total.index_add_(0, order // self.problem.topk, results.float() * self.weights[order, None])
        y.copy_(total)

    def exchange(self, sent: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows to the ranks of their experts and their results back; `counts` are this rank's rows of every expert of all ranks."""
        p = self.problem
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        outgoing, incoming = torch.stack([one.view(p.num_ranks, -1).sum(1) for one in (counts, arriving)]).tolist()
        received = sent.new_empty(sum(incoming), p.hidden)
        dist.all_to_all_single(received, sent, incoming, outgoing)
        local = torch.arange(p.experts_per_rank, device=sent.device).repeat(p.num_ranks)
        order = local.repeat_interleave(arriving, output_size=sum(incoming)).argsort(stable=True)
        results = torch.empty_like(received)
        results[order] = self.compute(received[order], arriving.view(p.num_ranks, -1).sum(0))
        returned = torch.empty_like(sent)
        dist.all_to_all_single(returned, results, outgoing, incoming)
        return returned

    def compute(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Both linears of rows that are sorted by expert, `counts` of each."""
        ends = counts.cumsum(0).int()
        gate, up = F.grouped_mm(rows, self.fc1, offs=ends).chunk(2, dim=-1)
        clamp = self.problem.activation_clamp
        if clamp is not None:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        return F.grouped_mm(F.silu(gate) * up, self.fc2, offs=ends)


def expand(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """In BF16, an expert at a time."""
    return torch.stack([dequantize_weight_e4m3(one, sf).bfloat16() for one, sf in zip(codes, scales, strict=True)])

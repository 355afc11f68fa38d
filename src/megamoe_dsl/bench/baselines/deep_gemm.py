"""DeepGEMM's SM90 MegaMoE (the sgl-deep-gemm wheel) on this project's inputs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.distributed as dist

from ...cases import TokenInputs
from ...problem import Problem
from ...quant import ExpertWeights
from ..timing import synchronize


class DeepGemm:
    """One layer of the baseline.  `site` is the folder that its wheels are unpacked in."""

    def __init__(self, site: str, problem: Problem, weights: ExpertWeights) -> None:
        if site not in sys.path:
            sys.path.insert(0, site)
        self.library: Any = importlib.import_module("deep_gemm")
        self.problem = problem
        self.weights = self.library.transform_weights_for_mega_moe_sm90((weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf))
        self.buffer: Any = None

    @property
    def num_bytes(self) -> int:
        """Of the symmetric buffer of one rank."""
        return int(self.buffer.buffer.nbytes)

    def allocate(self, problem: Problem) -> None:
        """Makes a buffer for `problem.max_tokens_per_rank` tokens; all ranks together.  `problem` may differ from the first one in that
        field only."""
        self.problem = p = problem
        self.buffer = self.library.get_symm_buffer_for_mega_moe(
            dist.group.WORLD, p.num_experts, p.max_tokens_per_rank, p.topk, p.hidden, p.intermediate
        )

    def load(self, inputs: TokenInputs) -> None:
        """Copies this rank's tokens into the buffer, once earlier launches on all ranks are done with it; all ranks together."""
        synchronize()
        buffer, tokens = self.buffer, inputs.x.shape[0]
        for target, source in zip((buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights), inputs, strict=True):
            target[:tokens].copy_(source)
        synchronize()

    def __call__(self, y: torch.Tensor) -> None:
        fc1, fc2 = self.weights
        self.library.fp8_mega_moe(y, fc1, fc2, self.buffer, activation_clamp=self.problem.activation_clamp)

    def free(self) -> None:
        """Frees the buffer; all ranks together."""
        if self.buffer is not None:
            torch.cuda.synchronize()
            dist.barrier()
            self.buffer.destroy()
            self.buffer = None

"""DeepGEMM's SM90 MegaMoE (the sgl-deep-gemm wheel, 0.1.5 to 0.2.5) on this project's inputs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ...cases import TokenInputs
from ...problem import Problem
from ...quant import ExpertWeights
from ..timing import synchronize


class DeepGemm:
    """A `Baseline`.  Its releases share these functions; the buffer has the capacity asked for, so that they choose a schedule for the
    tokens at hand without being told a bound."""

    PACKAGE: ClassVar[str] = "deep_gemm"

    def __init__(self, site: Path, problem: Problem, weights: ExpertWeights) -> None:
        if str(site) not in sys.path:
            sys.path.insert(0, str(site))
        self.library: Any = importlib.import_module(self.PACKAGE)
        self.version = str(getattr(self.library, "__version__", "unknown"))
        self.problem = problem
        self.weights = self.library.transform_weights_for_mega_moe_sm90((weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf))
        self.buffer: Any = None

    @property
    def num_bytes(self) -> int:
        """Of the symmetric buffer of this rank."""
        return int(self.buffer.buffer.nbytes)

    def allocate(self, problem: Problem) -> None:
        """A symmetric buffer for the capacity of `problem`; all ranks together."""
        self.problem = p = problem
        self.buffer = self.library.get_symm_buffer_for_mega_moe(
            dist.group.WORLD, p.num_experts, p.max_tokens_per_rank, p.topk, p.hidden, p.intermediate
        )

    def load(self, inputs: TokenInputs) -> None:
        """Copies a batch into the symmetric buffer; all ranks together."""
        synchronize()
        buffer, tokens = self.buffer, inputs.x.shape[0]
        for target, source in zip((buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights), inputs, strict=True):
            target[:tokens].copy_(source)
        synchronize()

    def __call__(self, y: torch.Tensor) -> None:
        fc1, fc2 = self.weights
        self.library.fp8_mega_moe(y, fc1, fc2, self.buffer, activation_clamp=self.problem.activation_clamp)

    def free(self) -> None:
        """Gives the symmetric buffer back, if there is one; all ranks together."""
        if self.buffer is not None:
            torch.cuda.synchronize()
            dist.barrier()
            self.buffer.destroy()
            self.buffer = None

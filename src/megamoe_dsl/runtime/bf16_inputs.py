"""Tokens of one rank as a model has them, before they are quantised."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..problem import Problem, ProblemError
from ..quant import INDEX_DTYPES
from .buffers import check_aligned, check_tensor


@dataclass(frozen=True)
class Bf16Inputs:
    """T tokens.

    x             bf16 [T, hidden], 16-byte aligned
    topk_idx      int64 or int32 [T, topk], distinct experts per token, -1 masks a slot
    topk_weights  float32 [T, topk]
    """

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.x.shape[0]

    def check_layout(self, problem: Problem, owner: str = "") -> None:
        """Raises `ProblemError` for a dtype, shape, stride or address; reads no tensor."""
        if self.x.dim() != 2:
            raise ProblemError(f"{owner}x.shape", tuple(self.x.shape), f"(tokens, {problem.hidden})")
        tokens = self.num_tokens
        problem.check_num_tokens(tokens, f"{owner}x.shape[0]")
        check_tensor(f"{owner}x", self.x, torch.bfloat16, (tokens, problem.hidden))
        check_tensor(f"{owner}topk_idx", self.topk_idx, INDEX_DTYPES, (tokens, problem.topk))
        check_tensor(f"{owner}topk_weights", self.topk_weights, torch.float32, (tokens, problem.topk))
        check_aligned(f"{owner}x", self.x, 16)

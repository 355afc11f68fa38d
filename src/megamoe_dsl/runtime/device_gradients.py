"""Stages of the backward pass of `moe` by this project's kernels, on Hopper."""

from __future__ import annotations

import torch

from ..blocks.gemm.varlen_k.problem import LEFT, RIGHT, VarlenKProblem
from .device_gemm import device_gemm
from .gemm_tensors import OUTPUT_DTYPES
from .varlen_k_tensors import VarlenKTensors

OUTPUTS = {dtype: name for name, dtype in OUTPUT_DTYPES.items()}


def weight_gradients(
    rows: torch.Tensor, tokens: torch.Tensor, sources: torch.Tensor, ends: torch.Tensor, total: torch.Tensor, tokens_first: bool
) -> None:
    """The sum of rows^T tokens over the rows of each expert, with `tokens_first` its transpose, into bfloat16 [E, M, N], or added to
    float32."""
    experts, n, k = total.shape
    output = OUTPUTS[total.dtype]
    problem = VarlenKProblem(n, k, num_groups=experts, output=output, accumulate=output == "f32", gathered=LEFT if tokens_first else RIGHT)
    tensors = VarlenKTensors(tokens, rows, ends, sources, total)
    kernel = device_gemm(problem, total.device).checked(tensors)
    if kernel is not None:
        kernel(tensors)
    elif not problem.accumulate:
        total.zero_()

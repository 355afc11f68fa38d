"""The reference with the numerics of DeepGEMM's SM90 kernel: gate and up in FP32, and FP32 quotients as Linear1's scales."""

from __future__ import annotations

from unittest.mock import patch

import torch

from megamoe_dsl.cases import Case
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import FP32_SCALE_BLOCK, encode_e4m3
from megamoe_dsl.reference import mega_moe_stages, moe

SMALLEST_AMAX = 1e-10


def swiglu(problem: Problem, gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up * weight without a rounding to BF16; float32 [n, I] of float32 [n, 2I]."""
    gate, up = gate_up.float().chunk(2, dim=1)
    if (clamp := problem.activation_clamp) is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    return gate * gate.sigmoid() * up * weight.unsqueeze(1)


def requantize(values: torch.Tensor, recipe: str) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 with one FP32 scale, amax / 448, per 128 channels: codes [n, I] and scales [n, I / 128]."""
    blocks = values.unflatten(-1, (-1, FP32_SCALE_BLOCK))
    scales = blocks.abs().amax(dim=-1).clamp(min=SMALLEST_AMAX) * torch.tensor(1.0 / 448.0)
    return encode_e4m3(blocks * scales.reciprocal().unsqueeze(-1)).flatten(-2), scales


def their_reference(case: Case) -> list[torch.Tensor]:
    """y of every rank, bf16 [T, hidden], with the tensor core's partial sums."""
    with patch.object(moe, "activate", swiglu), patch.object(moe, "requantize", requantize):
        return mega_moe_stages(case.problem, case.x, case.x_sf, case.topk_idx, case.topk_weights, case.weights, "hopper").y

"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class DecodeArguments:
    """Tokens, weights and what lies between the linears."""

    x: Int64  # bf16 [num_tokens, hidden], 16-byte aligned
    topk_idx: Int64  # i64, or i32, [num_tokens, topk]; what is no expert masks a slot
    topk_weights: Int64  # f32, or bf16, [num_tokens, topk]
    w1: Int64  # e4m3 or bf16 [num_experts, 2 intermediate, hidden]; e2m1 as `TransformedWeights`
    w1_sf: Int64  # f32 [num_experts, 2 intermediate / 128, hidden / 128] with e4m3, else 0
    w2: Int64  # [num_experts, hidden, intermediate], as w1
    w2_sf: Int64  # f32 [num_experts, hidden / 128, intermediate / 128], as w1_sf
    y: Int64  # bf16 [num_tokens, hidden], 16-byte aligned
    stats: Int64  # i32 [num_experts], to which each expert's rows are added, or 0
    memory: Int64  # what a launch leaves for the next one on it (config.py, `DecodeConfig.memory`); no two launches at once
    num_tokens: Int32

"""The layer of `moe` on CPU tensors, so that a model runs without a GPU: the reference, with the bits of Hopper's kernels, and slow."""

from __future__ import annotations

import torch

from ..blocks.gemm.problem import INTERLEAVED, UP_FIRST
from ..problem import ProblemError
from ..quant import no_scales, quantize_e4m3_f32
from ..reference import activate, requantize, scaled_matmul
from ..reference.router import router_metadata, weighted_sum
from .expert_call import ExpertCall


def layer_on_cpu(call: ExpertCall) -> torch.Tensor:
    """y of a checked call, bfloat16 [tokens, hidden]; gate and up go where the call stores them.  Sums are formed as Hopper's tensor core
    forms them (`reference.hopper_dot`).  Raises `ProblemError` for E2M1 weights."""
    layer, w = call.layer, call.weights
    if layer.formats.scales_in_mma:
        raise ProblemError("w1.dtype", w.w1.dtype, "torch.float8_e4m3fn or torch.bfloat16 on the CPU")
    named = (call.topk_idx >= 0) & (call.topk_idx < layer.num_experts)
    metadata = router_metadata(call.topk_idx.where(named, -1), layer.num_experts)
    x, x_sf = quantize_e4m3_f32(call.x.float()) if layer.formats.scaled else (call.x, no_scales(call.x))
    rows, stored = [call.x[:0]], []
    for expert, sources in enumerate(metadata.sources.long().split(metadata.counts.tolist())):
        if len(sources):
            rows_of_x = x.view(torch.uint8)[sources].view(x.dtype), x_sf[sources]
            sums = with_bias(scaled_matmul(*rows_of_x, w.w1[expert], w.w1_sf[expert], "hopper"), w.w1_bias, expert)
            stored.append(sums.bfloat16())
            h, h_sf = requantize(activate(layer.fc1, gate_then_up(sums, layer.gate_up), None), layer.recipe)
            rows.append(with_bias(scaled_matmul(h, h_sf, w.w2[expert], w.w2_sf[expert], "hopper"), w.w2_bias, expert).bfloat16())
    if call.preactivations is not None and stored:
        call.preactivations[: len(metadata.sources)] = torch.cat(stored)
    return weighted_sum(torch.cat(rows), metadata.positions, call.topk_weights.float())


def with_bias(sums: torch.Tensor, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    """An expert's sums with its bias, if it has one, float32."""
    return sums if bias is None else sums + bias[expert].float()


def gate_then_up(columns: torch.Tensor, gate_up: str) -> torch.Tensor:
    """The columns [gate | up] of Linear1's sums, in whatever order W1 has its rows."""
    if gate_up == INTERLEAVED:
        return torch.cat([columns[:, ::2], columns[:, 1::2]], dim=1)
    return columns.roll(columns.shape[1] // 2, dims=1) if gate_up == UP_FIRST else columns


def rows_of_w1(halves: torch.Tensor, gate_up: str) -> torch.Tensor:
    """Columns [gate | up] in the order in which W1 has its rows."""
    if gate_up == INTERLEAVED:
        return torch.stack(halves.chunk(2, dim=1), dim=2).flatten(1)
    return halves.roll(halves.shape[1] // 2, dims=1) if gate_up == UP_FIRST else halves

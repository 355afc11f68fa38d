"""`moe` on CPU tensors, so that a model runs without a GPU: the slow reference, with the sums of Hopper's kernels."""

from __future__ import annotations

import torch

from ..blocks.gemm.problem import INTERLEAVED, UP_FIRST
from ..quant import quantize, quantize_nvfp4
from ..quant.weights import TORCH_DTYPES
from ..reference import Accumulate, activate, linear2, requantize, scaled_matmul
from ..reference.router import router_metadata, weighted_sum
from ..reference.stages import factors_of_rows, with_bias
from .expert_call import ExpertCall
from .gemm_scales import gate_up_bytes, scale_bytes


def layer_on_cpu(call: ExpertCall) -> torch.Tensor:
    """y of a checked call, bfloat16 [tokens, hidden]; also stores gate and up if the call does.  Sums are those of Hopper's tensor core
    (`reference.hopper_dot`); of recipes that Hopper lacks, exact and rounded to FP32 once."""
    layer, w, formats = call.layer, call.operands, call.layer.formats
    accumulate: Accumulate = "hopper" if formats.sums_known else torch.float64
    named = (call.topk_idx >= 0) & (call.topk_idx < layer.num_experts)
    metadata = router_metadata(call.topk_idx.where(named, -1), layer.num_experts)
    each, scale = call.each_factor, TORCH_DTYPES[formats.weights.scale]
    x, x_sf = quantize(call.x, formats.activations) if each is None else quantize_nvfp4(call.x, each.x[0])
    w1_sf, w2_sf = (sf.view(scale) for sf in (gate_up_bytes(w.w1_sf, layer.gate_up), scale_bytes(w.w2_sf)))
    rows, stored = [call.x[:0]], []
    for expert, sources in enumerate(metadata.sources.long().split(metadata.counts.tolist())):
        if len(sources):
            own, own_sf = (one.view(torch.uint8)[sources].view(one.dtype) for one in (x, x_sf))
            factors = None if w.factors is None else w.factors[:, expert]
            sums = scaled_matmul(own, own_sf, w.w1[expert], w1_sf[expert], accumulate)
            if factors is not None:
                sums *= rows_of_w1(factors_of_rows(factors, sums.shape[1])[None], layer.gate_up)
            w1_bias, w2_bias = (None if bias is None else bias[expert].float() for bias in (w.w1_bias, w.w2_bias))
            sums = with_bias(sums, w1_bias)
            stored.append(sums.bfloat16())
            values = activate(layer.fc1, gate_then_up(sums, layer.gate_up), None)
            h, h_sf = requantize(values, layer.recipe, each and each.hidden[expert])
            rows.append(linear2(h, h_sf, w.w2[expert], w2_sf[expert], accumulate, w2_bias, factors=factors))
    if w.preactivations is not None and stored:
        w.preactivations[: len(metadata.sources)] = torch.cat(stored)
    return weighted_sum(torch.cat(rows), metadata.positions, call.topk_weights.float())


def gate_then_up(columns: torch.Tensor, gate_up: str) -> torch.Tensor:
    """Columns [gate | up], from columns in the order of W1's rows."""
    if gate_up == INTERLEAVED:
        return torch.cat([columns[:, ::2], columns[:, 1::2]], dim=1)
    return columns.roll(columns.shape[1] // 2, dims=1) if gate_up == UP_FIRST else columns


def rows_of_w1(halves: torch.Tensor, gate_up: str) -> torch.Tensor:
    """Columns in the order of W1's rows, from columns [gate | up]."""
    if gate_up == INTERLEAVED:
        return torch.stack(halves.chunk(2, dim=1), dim=2).flatten(1)
    return halves.roll(halves.shape[1] // 2, dims=1) if gate_up == UP_FIRST else halves

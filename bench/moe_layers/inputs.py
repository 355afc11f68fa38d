"""Tensors of a point, and its result in float64 for some tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.quant import dequantize_weight_e4m3, no_scales, quantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from moe_layers.point import ExpertPoint

SEED = 0
SAMPLED_TOKENS = 4
TOLERANCE = 6e-2
"""Relative error by norm of a layer whose tokens and intermediates are E4M3."""


def draw_weights(layer: ExpertLayer, device: str = "cuda") -> LayerOperands:
    """Normal numbers, in the layer's format, scaled so that results are about as large as tokens."""
    torch.manual_seed(SEED)
    made = []
    for rows, columns in ((2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate)):
        if not layer.formats.scaled:
            w = torch.empty(layer.num_experts, rows, columns, dtype=torch.bfloat16, device=device)
            for expert in range(layer.num_experts):
                w[expert] = torch.randn(rows, columns, device=device) * columns**-0.5
            made += [w, no_scales(w)]
            continue
        w = torch.empty(layer.num_experts, rows, columns, dtype=torch.float8_e4m3fn, device=device)
        w_sf = torch.empty(layer.num_experts, rows // 128, columns // 128, device=device)
        for expert in range(layer.num_experts):
            codes, w_sf[expert] = quantize_weight_e4m3(torch.randn(rows, columns, device=device) * columns**-0.5)
            w.view(torch.uint8)[expert] = codes.view(torch.uint8)
        made += [w, w_sf]
    return LayerOperands(*made)


def run_each(points: Sequence[ExpertPoint], run: Callable[[ExpertPoint, LayerOperands], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A record of each point with its layer's weights; the weights of one model are there at a time."""
    for layer, own in groupby(points, key=lambda point: point.layer):
        weights = draw_weights(layer)
        for point in own:
            yield run(point, weights)
        del weights
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class DrawnCall:
    """A call, and tokens whose results are known."""

    call: ExpertCall
    sampled: torch.Tensor
    expected: torch.Tensor

    @classmethod
    def draw(cls, layer: ExpertLayer, tokens: int, weights: LayerOperands) -> DrawnCall:
        """Normal tokens, and experts drawn evenly."""
        device = weights.w1.device
        generator = torch.Generator(device).manual_seed(SEED + tokens)
        x = torch.randn(tokens, layer.hidden, device=device, generator=generator).bfloat16()
        chosen = torch.rand(tokens, layer.num_experts, device=device, generator=generator).topk(layer.topk, dim=1)
        call = ExpertCall(layer, x, chosen.indices.contiguous(), chosen.values.softmax(dim=1).contiguous(), weights)
        call.check()
        sampled = torch.randperm(tokens, device=device, generator=generator)[:SAMPLED_TOKENS]
        return cls(call, sampled, torch.stack([result(call, int(token)) for token in sampled]))

    def error(self, y: torch.Tensor) -> float:
        """Relative, by norm, of the sampled tokens."""
        return float((y[self.sampled].double() - self.expected).norm() / self.expected.norm())


def float64(w: torch.Tensor, w_sf: torch.Tensor) -> torch.Tensor:
    """An expert's weights, exactly."""
    return w.double() if w.dtype == torch.bfloat16 else dequantize_weight_e4m3(w, w_sf)


def result(call: ExpertCall, token: int) -> torch.Tensor:
    """A token's result in float64."""
    w, total = call.operands, torch.zeros(call.layer.hidden, dtype=torch.float64, device=call.x.device)
    for expert, weight in zip(call.topk_idx[token].tolist(), call.topk_weights[token].tolist(), strict=True):
        gate, up = (float64(w.w1[expert], w.w1_sf[expert]) @ call.x[token].double()).chunk(2)
        total += weight * (float64(w.w2[expert], w.w2_sf[expert]) @ (torch.nn.functional.silu(gate) * up))
    return total

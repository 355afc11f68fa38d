"""Arithmetic of the layer, one function per stage, on the rows of one expert.

Each rounding step is that of DeepGEMM's SM100 kernel (`sm100_fp8_fp4_mega_moe.cuh`, both epilogues and the combine).  Recipes differ in
their formats (recipe.py): those with FP32 scales promote the two sums every 128 of K (`promoted`), the others have a scale per 32 outputs.

FP32 accumulation order is not defined, so the reference sums in float64 and rounds to FP32 once.  Where every partial sum, in units of the
smallest product bit, stays below 2^24, any order gives that result: `cases.random_case(exact=True)` makes such data, and kernels must then
agree bit for bit.  For other data `bounds.error_bound` says how far they may differ.
"""

import torch

from megamoe_dsl.quant import blocks_of, dequantize, dequantize_e4m3, quantize, quantize_e4m3
from megamoe_dsl.recipe import BF16, COMBINE, RECIPES, ExpertFactors
from megamoe_dsl.reference.promoted import Accumulate, hopper_dot, promoted_matmul
from megamoe_dsl.reference.router import weighted_sum


def scaled_matmul(
    x: torch.Tensor, x_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor, accumulate: Accumulate = torch.float64, parts: int = 1
) -> torch.Tensor:
    """x @ w^T, float32 [n, rows]; FP32 scales of x mean that sums are promoted (`promoted_matmul`), bytes that the tensor core scales.

    x           float8_e4m3fn [n, K]; mxf4xmxf4: uint8 packed E2M1 [n, K/2]; bf16xbf16: bfloat16 [n, K], as w, and scales do not matter
    x_sf        uint8 UE8M0 [n, K/32]; promoted: float32 [n, ceil(K/128)]; NVFP4: float8_e4m3fn [n, K/16], and w_sf likewise
    w           uint8 packed E2M1 [rows, K/2]; fp8xfp8, mxfp8xmxfp8: float8_e4m3fn [rows, K]
    w_sf        uint8 UE8M0 [rows, K/32]; fp8xfp8: float32 [ceil(rows/128), ceil(K/128)]
    accumulate  float64, the reference; float32 shows what another accumulation does, for tests; "hopper" forms sums as Hopper's tensor
                core does: partial ones where they are promoted, those of bf16xbf16 over all of K
    parts       matrices that w has below one another, each with blocks of scales of its own

    Raises ValueError on a dtype, shape or K that does not fit (see `quant.dequantize_e4m3`, `quant.dequantize_e2m1`, `promoted_matmul`),
    and on an accumulation that the combination does not have.
    """
    if x_sf.dtype == torch.float32:
        return promoted_matmul(x, x_sf, w, w_sf, accumulate, parts)
    if accumulate == "hopper" and x.dtype == w.dtype == torch.bfloat16:
        return hopper_dot(x, w)
    if not isinstance(accumulate, torch.dtype):
        raise ValueError(f"accumulate: {accumulate!r}, allowed for fp8xfp4: torch.float64, torch.float32")
    left, right = dequantize(x, x_sf), dequantize(w, w_sf)
    if left.shape[-1] != right.shape[-1]:
        raise ValueError(f"x: K = {left.shape[-1]}, allowed: {right.shape[-1]}, the K of w")
    return (left.to(accumulate) @ right.to(accumulate).T).to(torch.float32)


def linear1(
    x: torch.Tensor,
    x_sf: torch.Tensor,
    w: torch.Tensor,
    w_sf: torch.Tensor,
    accumulate: Accumulate = torch.float64,
    bias: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """FP32 accumulators of Linear1 for one expert, float32 [n, 2I], columns [gate | up], times the expert's `factors`, float32 [5], and
    with the bias added if it has them.  x, x_sf, w, w_sf and accumulate are those of `scaled_matmul`, K = H and 2I rows [gate | up] of
    weights; bias is float32 [2I]."""
    total = scaled_matmul(x, x_sf, w, w_sf, accumulate, parts=2)
    return with_bias(total if factors is None else total * factors_of_rows(factors, total.shape[1]), bias)


def factors_of_rows(factors: torch.Tensor, rows: int) -> torch.Tensor:
    """An expert's factors of Linear1's rows [gate | up], float32 [rows]."""
    each = ExpertFactors(*factors)
    return torch.stack([each.gate, each.up]).repeat_interleave(rows // 2)


def with_bias(total: torch.Tensor, bias: torch.Tensor | None, factor: torch.Tensor | None = None) -> torch.Tensor:
    """total + factor * bias, rounded to FP32 once: float32 [n, rows]; bias float32 [rows], factor float32 [n] or 1."""
    if bias is None:
        return total
    scaled = bias.double() if factor is None else factor.double()[:, None] * bias.double()
    return (total.double() + scaled).float()


def requantize(values: torch.Tensor, recipe: str = "fp8xfp4", factor: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations of Linear2, from what `activation.activate` gives, float32 [n, I], with one power-of-two scale per 32 channels, or 128.

    Gives (float8_e4m3fn [n, I], uint8 [n, I/32]); mxf4xmxf4: packed E2M1, uint8 [n, I/2]; fp8xfp8: float32 scales [n, I/128]; bf16xbf16:
    (bfloat16 [n, I], uint8 [n, 0]); nvfp4xnvfp4: packed E2M1 and float8_e4m3fn [n, I/16].  `factor`, float32, one or [n], is that of
    formats which have one.
    """
    return quantize(values, RECIPES[recipe].hidden, factor)


def linear2(
    x: torch.Tensor,
    x_sf: torch.Tensor,
    w: torch.Tensor,
    w_sf: torch.Tensor,
    accumulate: Accumulate = torch.float64,
    bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Output of Linear2 for one expert, before it travels to the token's rank: FP32 accumulators rounded to BF16, [n, H].

    x, x_sf, w, w_sf and accumulate are those of `scaled_matmul`, K = I and H rows of weights.  The top-k weight is not applied to sums
    here: it went into the activations before they were quantized.  A bias, float32 [H], is multiplied with it and added in FP32; `weight`
    is float32 [n], or None where combine applies it.  `factors` as of `linear1`.
    """
    total = scaled_matmul(x, x_sf, w, w_sf, accumulate)
    return with_bias(total if factors is None else total * ExpertFactors(*factors).fc2, bias, weight).to(torch.bfloat16)


def travel(out: torch.Tensor, element: str = BF16) -> torch.Tensor:
    """Results of Linear2, bfloat16 [n, H], as combine receives them: unchanged, or rounded to E4M3 with a UE8M0 scale per 128 channels.

    `element` is one of `recipe.COMBINE`.  Gives `out` for bf16; for e4m3 float32 [n, H], exactly what codes and scales stand for.
    """
    form = COMBINE[element]
    if form.scale is None:
        return out
    blocks = blocks_of(out, form.channels).flatten(1)
    return dequantize_e4m3(*quantize_e4m3(blocks, form.channels), form.channels).float()[:, : out.shape[1]]


def combine(outputs: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Sum the slots of each token: FP32 from zero, ascending slots, masked slots skipped, rounded to BF16 once: [T, H].

    `outputs` is bfloat16 or float32 [topk, T, H], from `travel`: the combine buffer of one rank; masked slots may hold anything, and a
    token whose slots are all masked becomes zeros.  `topk_idx` is int64 [T, topk], negative entries masked.  `weights`, float32 [T, topk],
    multiply the results, rounded once with the addition (an fma).  Raises ValueError when the shapes do not fit.
    """
    if outputs.ndim != 3 or tuple(topk_idx.shape) != (outputs.shape[1], outputs.shape[0]):
        raise ValueError(f"topk_idx: shape {tuple(topk_idx.shape)}, allowed: (T, topk) of outputs {tuple(outputs.shape)} [topk, T, H]")
    rows = torch.arange(topk_idx.numel(), device=outputs.device).view(outputs.shape[:2]).T
    weights = torch.ones(topk_idx.shape, device=outputs.device) if weights is None else weights
    return weighted_sum(outputs.flatten(0, 1).float(), rows.where(topk_idx >= 0, -1), weights).bfloat16()

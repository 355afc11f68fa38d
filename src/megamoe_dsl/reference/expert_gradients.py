"""Gradients of the layer on one GPU, stage by stage, as kernels compute them; of float64 tensors the same formulas without a rounding.

With X the tokens, Y their results, and for row r of expert e its token t and top-k weight w, H gate and up, A the activated product:

    dA[r] = w dY[t] W2[e]        dw = <dY[t] W2[e], A[r]>        dH[r] = activation'(H[r]) dA[r]
    dX[t] = sum over slots of dH[r] W1[e]        dW1[e] = sum over rows of dH[r]^T X[t]        dW2[e] = sum over rows of (w A[r])^T dY[t]

Operands of all products are BF16, sums FP32.  A, w A and dH are rounded to BF16, as are the rows that dX is the sum of.  In FP8 operands
become E4M3 with FP32 scales, as DeepSeek-V3 does it: rows a scale for every 128 values along K, which are rows of an expert in dW1 and
dW2, and weights one for 128 x 128; sums are promoted every 128 of K.  In MXFP8 both sides have a scale for every 32 values along K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from megamoe_dsl.problem import ActivatingProblem
from megamoe_dsl.reference.activation import activation_gradient
from megamoe_dsl.reference.promoted import Accumulate, Scaled, hopper_dot
from megamoe_dsl.reference.router import RouterMetadata, weighted_sum
from megamoe_dsl.reference.stages import scaled_matmul

Columns = Callable[[torch.Tensor], torch.Tensor]
"""Columns in another order."""


class RowGradients(NamedTuple):
    """Results of the first stage; rows sorted as in `RouterMetadata`.

    rows          [rows, 2I]: dH, in the columns of W1's rows
    weighted      [rows, I]: w A
    topk_weights  float32 [tokens, topk]: dw, 0 of masked slots
    """

    rows: torch.Tensor
    weighted: torch.Tensor
    topk_weights: torch.Tensor


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right^T: float64 exactly, of bfloat16 the FP32 sums of Hopper's tensor core."""
    return left @ right.T if left.dtype == torch.float64 else hopper_dot(left, right)


def expert_sums(rows: Scaled, weights: Scaled, counts: torch.Tensor) -> torch.Tensor:
    """The sums of each expert's rows, [rows, K] with weights [E, N, K]: [rows, N]; of E4M3 scales are float32 [rows, K / 128] and [E, N /
    128, K / 128], or UE8M0 [rows, K / 32] and [E, N, K / 32], whose sums are exact ones, rounded to FP32 once."""
    (codes, sf), (b, b_sf) = rows, weights
    own = [(expert, part) for expert, part in enumerate(torch.arange(len(codes), device=codes.device).split(counts.tolist())) if len(part)]
    if codes.dtype == torch.float8_e4m3fn:
        codes = codes.view(torch.uint8)
        accumulate: Accumulate = "hopper" if sf.dtype == torch.float32 else torch.float64
        sums = [scaled_matmul(codes[part].view(b.dtype), sf[part], b[expert], b_sf[expert], accumulate) for expert, part in own]
    else:
        sums = [dot(codes[part], b[expert]) for expert, part in own]
    return torch.cat(sums) if sums else torch.zeros(0, b.shape[1], device=b.device)


def row_gradients(
    problem: ActivatingProblem,
    raw: torch.Tensor,
    metadata: RouterMetadata,
    topk_weights: torch.Tensor,
    preactivations: torch.Tensor,
    columns: tuple[Columns, Columns],
) -> RowGradients:
    """dH, w A and dw.

    problem         gives activation and clamp
    raw             [rows, I]: dY W2
    topk_weights    [tokens, topk]
    preactivations  [rows or more, 2I], in the columns of W1's rows
    columns         to the order [gate | up], and back
    """
    to_halves, back = columns
    stored, sums = preactivations[: len(raw)], raw.dtype
    slots = (metadata.positions.flatten() >= 0).nonzero().flatten()
    slots = slots[metadata.positions.flatten()[slots].argsort()]
    w = topk_weights.flatten()[slots, None].to(sums)
    halves = to_halves(stored).to(sums)
    product, gradient = activation_gradient(problem.activates, problem.product.clamp, halves, raw * w, sums == torch.float32)
    a = product.to(stored.dtype)
    of_weights = torch.zeros(topk_weights.numel(), dtype=sums, device=raw.device)
    of_weights[slots] = (raw.double() * a.double()).sum(dim=1).to(sums)
    return RowGradients(back(gradient).to(stored.dtype), (a.to(sums) * w).to(stored.dtype), of_weights.view(topk_weights.shape))


def token_gradients(products: torch.Tensor, metadata: RouterMetadata) -> torch.Tensor:
    """dX, [tokens, H], of dH W1, [rows, H], in the type of the layer: a token's rows added in the order of its slots."""
    return weighted_sum(products, metadata.positions, torch.ones(metadata.positions.shape, device=products.device))


def weight_gradients(left: torch.Tensor, right: torch.Tensor, metadata: RouterMetadata) -> torch.Tensor:
    """FP32 sums of each expert's rows, left^T @ right, [E, M, N]; an expert without rows has zeros.

    left  [rows, M]; right  [rows, N]
    """
    counts = metadata.counts.tolist()
    pairs = zip(left.split(counts), right.split(counts), strict=True)
    return torch.stack([dot(one.T.contiguous(), other.T.contiguous()) for one, other in pairs])

"""Gradients of the layer on one GPU, stage by stage, as kernels compute them; of float64 tensors the same formulas without a rounding.

With X the tokens, Y their results, and for row r of expert e its token t and top-k weight w, H gate and up, A the activated product:

    dA[r] = w dY[t] W2[e]        dw = <dY[t] W2[e], A[r]>        dH[r] = activation'(H[r]) dA[r]
    dX[t] = sum over slots of dH[r] W1[e]        dW1[e] = sum over rows of dH[r]^T X[t]        dW2[e] = sum over rows of (w A[r])^T dY[t]

Operands of all products are BF16, sums FP32.  A, w A and dH are rounded to BF16, as are the rows that dX is the sum of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from megamoe_dsl.problem import ActivatingProblem
from megamoe_dsl.reference.activation import activation_gradient
from megamoe_dsl.reference.promoted import BF16_SUMS, hopper_dot
from megamoe_dsl.reference.router import RouterMetadata, weighted_sum

Columns = Callable[[torch.Tensor], torch.Tensor]
"""Columns in another order."""


class RowGradients(NamedTuple):
    """What the first stage leaves; rows as `RouterMetadata` sorts them.

    rows          [rows, 2I]: dH, in the columns of W1's rows
    weighted      [rows, I]: w A
    topk_weights  float32 [tokens, topk]: dw, 0 of masked slots
    """

    rows: torch.Tensor
    weighted: torch.Tensor
    topk_weights: torch.Tensor


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right^T over any K: float64 exactly, of bfloat16 the FP32 sums of Hopper's tensor core, K padded with zeros."""
    if left.dtype == torch.float64:
        return left @ right.T
    padding = (0, -left.shape[1] % BF16_SUMS.k if left.shape[1] else BF16_SUMS.k)
    return hopper_dot(*(torch.nn.functional.pad(one, padding) for one in (left, right)))


def row_gradients(
    problem: ActivatingProblem,
    dy: torch.Tensor,
    metadata: RouterMetadata,
    topk_weights: torch.Tensor,
    w2: torch.Tensor,
    preactivations: torch.Tensor,
    columns: tuple[Columns, Columns],
) -> RowGradients:
    """dH, w A and dw.

    problem         its activation and clamp count
    dy              [tokens, H]
    topk_weights    [tokens, topk]
    w2              [E, H, I]
    preactivations  [rows or more, 2I], in the columns of W1's rows
    columns         to the order [gate | up], and back
    """
    to_halves, back = columns
    sums = torch.float64 if dy.dtype == torch.float64 else torch.float32
    sources, rows = metadata.sources.long(), len(metadata.sources)
    slots = (metadata.positions.flatten() >= 0).nonzero().flatten()
    slots = slots[metadata.positions.flatten()[slots].argsort()]
    weights = topk_weights.flatten()[slots].to(sums)
    dh, weighted = preactivations.new_zeros(rows, preactivations.shape[1]), preactivations.new_zeros(rows, w2.shape[2])
    of_weights = torch.zeros(topk_weights.numel(), dtype=sums, device=dy.device)
    for expert, own in enumerate(torch.arange(rows, device=dy.device).split(metadata.counts.tolist())):
        if len(own):
            raw, w = dot(dy[sources[own]], w2[expert].T), weights[own, None]
            halves = to_halves(preactivations[own]).to(sums)
            product, gradient = activation_gradient(problem.activates, problem.product.clamp, halves, raw * w, sums == torch.float32)
            a = product.to(dy.dtype)
            dh[own], weighted[own] = back(gradient).to(dy.dtype), (a.to(sums) * w).to(dy.dtype)
            of_weights[slots[own]] = (raw.double() * a.double()).sum(dim=1).to(sums)
    return RowGradients(dh, weighted, of_weights.view(topk_weights.shape))


def token_gradients(rows: torch.Tensor, metadata: RouterMetadata, w1: torch.Tensor) -> torch.Tensor:
    """dX, [tokens, H], of rows dH, [rows, 2I], and w1, [E, 2I, H]: a token's rows added in the order of its slots."""
    parts = [dot(own, w1[expert].T).to(rows.dtype) for expert, own in enumerate(rows.split(metadata.counts.tolist())) if len(own)]
    products = torch.cat(parts) if parts else rows.new_zeros(0, w1.shape[2])
    return weighted_sum(products, metadata.positions, torch.ones(metadata.positions.shape, device=rows.device))


def weight_gradients(left: torch.Tensor, right: torch.Tensor, metadata: RouterMetadata) -> torch.Tensor:
    """FP32 sums of each expert's rows, left^T @ right, [E, M, N]; an expert without rows has zeros.

    left  [rows, M]; right  [rows, N]
    """
    counts = metadata.counts.tolist()
    pairs = zip(left.split(counts), right.split(counts), strict=True)
    return torch.stack([dot(one.T.contiguous(), other.T.contiguous()) for one, other in pairs])

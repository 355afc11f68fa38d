"""Weights in the order of each architecture's kernel, under DeepGEMM's names."""

from __future__ import annotations

import torch

from ...arch import SM100
from ...problem import ProblemError
from ...quant import interleave_gate_up, order_rows_sm90, tile_sm90, utccp_scale_order
from .buffer import check_swiglu
from .scale_layout import scale_bytes

Weights = tuple[torch.Tensor, torch.Tensor]


def transform_weights_for_mega_moe_sm90(l1_weights: Weights, l2_weights: Weights) -> tuple[Weights, Weights]:
    """For `fp8_mega_moe`.

    l1_weights  e4m3 [E, 2I, H], rows [gate | up], and float32 [E, 2I/128, H/128]
    l2_weights  e4m3 [E, H, I] and float32 [E, H/128, I/128]

    Returns weights as tiles, e4m3 [E, 2I/256, H/128, 256, 128] and [E, H/256, I/128, 256, 128], and the same scales: another order than
    DeepGEMM's, in another shape, so that neither is taken for the other.  Raises ValueError for shapes that are no multiples.
    """
    (fc1, fc1_sf), (fc2, fc2_sf) = l1_weights, l2_weights
    return (tile_sm90(order_rows_sm90(fc1)), fc1_sf.contiguous()), (tile_sm90(fc2), fc2_sf.contiguous())


def transform_weights_for_mega_moe(l1_weights: Weights, l2_weights: Weights, activation: str = "swiglu") -> tuple[Weights, Weights]:
    """For `fp8_fp4_mega_moe`, byte for byte what DeepGEMM makes.

    l1_weights  int8 or uint8 [E, 2I, H/2], two E2M1 a byte, rows [gate | up], and int32 [E, 2I, H/128], M-major, four UE8M0 each, as
                `transform_sf_into_required_layout` returns them
    l2_weights  the same of [E, H, I]

    Raises `ProblemError` and ValueError.
    """
    check_swiglu(activation)
    (fc1, fc1_sf), (fc2, fc2_sf) = l1_weights, l2_weights
    for name, codes in (("l1_weights", fc1), ("l2_weights", fc2)):
        if codes.dtype not in (torch.int8, torch.uint8):
            raise ProblemError(f"{name}[0].dtype", codes.dtype, f"torch.int8 or torch.uint8: {SM100} takes weights in E2M1")
    return (interleave_gate_up(fc1), _utccp(interleave_gate_up(scale_bytes(fc1_sf)))), (fc2, _utccp(scale_bytes(fc2_sf)))


def _utccp(scales: torch.Tensor) -> torch.Tensor:
    """uint8 [E, rows, K/32] to int32 [E, rows, K/128], M-major, rows in the order of UTCCP within each 128."""
    experts, rows, _ = scales.shape
    return utccp_scale_order(scales).view(experts, -1, rows).transpose(1, 2)

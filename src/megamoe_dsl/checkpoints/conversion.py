"""From the format that weights are published in to that of a recipe: nothing is rounded but what is published in BF16."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..quant import decode_ue8m0, expand_e2m1, quantize_e2m1, quantize_e4m3, quantize_weight_e4m3
from ..recipe import BF16, MXFP4, MXFP8, Format
from .published import FP8_BLOCKS, PUBLISHED

Weight = tuple[torch.Tensor, torch.Tensor | None]
"""Codes and scales."""
_UE8M0_BLOCKS = PUBLISHED["deepseek-v4-fp8"].format


def _float_scales(codes: torch.Tensor, scales: torch.Tensor) -> Weight:
    # 2^-127, which FP32 has as a subnormal only, is no scale that weights are published with; it stays exact all the same.
    return codes, decode_ue8m0(scales).to(torch.float32)


def _scales_of_rows(codes: torch.Tensor, scales: torch.Tensor) -> Weight:
    """The scale of a block, for each of its rows and every 32 channels."""
    blocks = _UE8M0_BLOCKS
    rows = scales.repeat_interleave(blocks.rows, dim=0)[: len(codes)]
    return codes, rows.repeat_interleave(blocks.channels // MXFP8.channels, dim=1)


_CONVERSIONS: dict[tuple[Format, Format], Callable[..., Weight]] = {
    (MXFP4, FP8_BLOCKS): expand_e2m1,
    (_UE8M0_BLOCKS, FP8_BLOCKS): _float_scales,
    (_UE8M0_BLOCKS, MXFP8): _scales_of_rows,
    (Format(BF16), FP8_BLOCKS): lambda codes, _: quantize_weight_e4m3(codes),
    (Format(BF16), MXFP4): lambda codes, _: quantize_e2m1(codes),
    (Format(BF16), MXFP8): lambda codes, _: quantize_e4m3(codes),
}
DOUBLES = (MXFP4, FP8_BLOCKS)
"""The conversion that takes twice the memory: only when it is asked for."""


def can_convert(stored: Format, wanted: Format) -> bool:
    """Whether weights of one format can be had in another."""
    return stored == wanted or (stored, wanted) in _CONVERSIONS


def convert(codes: torch.Tensor, scales: torch.Tensor | None, stored: Format, wanted: Format) -> Weight:
    """Weights [rows, K] in another format, on the device they are on.  Raises ValueError where a value would change, but for BF16's."""
    if stored == wanted:
        return codes, scales
    return _CONVERSIONS[stored, wanted](codes, scales)

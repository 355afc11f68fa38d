"""NVFP4: E2M1 with one E4M3 scale, never negative, for every 16 values, and an FP32 factor of the whole matrix.

Source: PTX ISA, "tcgen05.mma" (`kind::mxf4nvf4`: UE4M3 scales of 16 values).  How scales and codes come from values and a factor is the
rule of NVIDIA's Model Optimizer, whose checkpoints call the factor of weights weight_scale_2 and that of activations input_scale
(docs/lab/references.md): the largest scale of what a factor was made from is the largest that E4M3 has.
"""

import torch

from megamoe_dsl.quant.formats import (
    E2M1_MAX,
    E4M3_MAX,
    _require_blocks,
    _require_finite,
    decode_e4m3,
    e2m1_values,
    encode_e2m1,
    encode_e4m3,
    pack_e2m1,
    unpack_e2m1,
)

NVFP4_BLOCK = 16


def nvfp4_factor(x: torch.Tensor) -> torch.Tensor:
    """The factor with which the largest scale of `x` is the largest that E4M3 has: float32 amax / (448 * 6), a scalar; 1 for zeros."""
    amax = x.abs().amax().to(torch.float32)
    return torch.where(amax == 0, 1.0, amax / (E4M3_MAX * E2M1_MAX))


def quantize_nvfp4(x: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize floating point [..., K] to packed E2M1, uint8 [..., K / 2], with one E4M3 scale per 16 values, float8_e4m3fn [..., K / 16].

    A scale is amax / (6 * factor), to the nearest E4M3; codes are x / (scale * factor), to the nearest E2M1; both saturate, each operation
    is rounded to FP32.  Where a scale is zero the codes are, with the values' signs.  `factor` is float32 and positive: one, or [...] of
    leading dimensions as `nvfp4_factor` gives it for each.

    Raises ValueError when K is not a multiple of 16, or x holds a non-finite value.
    """
    _require_blocks("x", x.shape[-1], NVFP4_BLOCK)
    _require_finite("x", x)
    blocks = x.to(torch.float32).unflatten(-1, (-1, NVFP4_BLOCK))
    whole = factor.to(torch.float32).reshape(*factor.shape, *[1] * (blocks.ndim - factor.ndim))
    sf = encode_e4m3(blocks.abs().amax(dim=-1) / (E2M1_MAX * whole.squeeze(-1)))
    scale = decode_e4m3(sf).to(torch.float32).unsqueeze(-1) * whole
    codes = blocks / torch.where(scale > 0, scale, torch.inf)
    return pack_e2m1(encode_e2m1(codes).flatten(-2)), sf


def dequantize_nvfp4(packed: torch.Tensor, sf: torch.Tensor) -> torch.Tensor:
    """Exact values without the factor of the matrix: uint8 [..., K / 2] and float8_e4m3fn [..., K / 16] to float64 [..., K].

    Raises ValueError when shapes do not fit.
    """
    codes = unpack_e2m1(packed)
    if codes.shape != (*sf.shape[:-1], sf.shape[-1] * NVFP4_BLOCK):
        raise ValueError(f"sf: shape {tuple(sf.shape)}, allowed: {(*codes.shape[:-1], codes.shape[-1] // NVFP4_BLOCK)}")
    values = e2m1_values().to(codes.device)[codes.to(torch.int32)]
    return (values.unflatten(-1, (-1, NVFP4_BLOCK)) * decode_e4m3(sf).unsqueeze(-1)).flatten(-2)

"""What callers of the fused MoE use of its helper functions: casts of tokens."""

from __future__ import annotations

import torch

from ....problem import ProblemError
from ....quant import quantize_e4m3, quantize_e4m3_f32


def per_token_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [T, K] in E4M3, and their scales as a buffer's x_sf takes them.

    use_ue8m0 False   float32 [T, K / gran_k], amax / 448
    both True         int32 [T, K / (4 gran_k)], four UE8M0 a word

    Raises `ProblemError` for other options, ValueError for what cannot be quantized.
    """
    if not use_ue8m0 and not use_packed_ue8m0:
        return quantize_e4m3_f32(x, gran_k, check=False)  # may be in a CUDA graph
    if not (use_ue8m0 and use_packed_ue8m0):
        raise ProblemError("use_packed_ue8m0", use_packed_ue8m0, "the same as use_ue8m0")
    codes, scales = quantize_e4m3(x, gran_k)
    return codes, scales.view(torch.int32)

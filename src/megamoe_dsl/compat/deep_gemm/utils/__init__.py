"""What callers of the fused MoE use of its helper functions: casts of tokens."""

from __future__ import annotations

import torch

from ....problem import ProblemError
from ....quant import blocks_of, e2m1_scale_byte, encode_e2m1, inverse_scale, pack_e2m1, quantize_e4m3, quantize_e4m3_f32

_LEAST_AMAX = 1e-4
_MINUS_ZERO = 8


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


def per_token_cast_to_fp4(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [T, K] in E2M1, int8 [T, K / 2] with the first of two in the low bits, and scales int32 [T, K / 128], four UE8M0 a word.

    Ties go to the even code; there is no minus zero, and the largest magnitude of a block counts as 1e-4 at least, as in DeepGEMM.

    Raises `ProblemError` for other scales than UE8M0 of 32 in words.
    """
    for name, value, allowed in (("use_ue8m0", use_ue8m0, True), ("use_packed_ue8m0", use_packed_ue8m0, True), ("gran_k", gran_k, 32)):
        if value != allowed:
            raise ProblemError(name, value, f"{allowed}: a buffer's x_sf has words of UE8M0 per 32 channels")
    blocks = blocks_of(x.float(), gran_k)
    scales = e2m1_scale_byte(blocks.abs().amax(-1).clamp(min=_LEAST_AMAX))
    codes = encode_e2m1((blocks * inverse_scale(scales).unsqueeze(-1)).flatten(-2))
    return pack_e2m1(codes.masked_fill(codes == _MINUS_ZERO, 0)).view(torch.int8), scales.view(torch.int32)

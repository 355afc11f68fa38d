"""Plain values: what stands for the scales of BF16, which has none, and which values of any format are NaN or infinite."""

import torch

from megamoe_dsl.quant.weights import ExpertWeights

_E4M3_NAN = 0x7F  # with either sign; e4m3fn has no infinity
_UE8M0_NAN = 0xFF


def not_finite(values: torch.Tensor) -> torch.Tensor:
    """Where values are NaN or infinite: bool of the same shape; float8_e4m3fn, UE8M0 scales, or any float of 16 bits and more.

    No kernel looks for them, and what becomes of one is not specified: it may reach the output as NaN, or a clamp or a cast to E4M3,
    which has no infinity, may hide it. It stays where it is used, in the outputs of its token or, among weights, of the tokens that its
    expert takes.
    """
    if values.dtype == torch.float8_e4m3fn:
        return values.view(torch.uint8).bitwise_and(0x7F) == _E4M3_NAN
    if values.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return values.view(torch.uint8) == _UE8M0_NAN
    return ~torch.isfinite(values)


def no_scales(values: torch.Tensor) -> torch.Tensor:
    """What stands for the scales of values that have none: uint8 [..., 0]."""
    return torch.empty(*values.shape[:-1], 0, dtype=torch.uint8, device=values.device)


def unscaled_weights(fc1: torch.Tensor, fc2: torch.Tensor) -> ExpertWeights:
    """Weights of one rank's El experts for bf16xbf16, as checkpoints have them: bf16 [El, 2I, H], rows [gate | up], and [El, H, I]."""
    return ExpertWeights(fc1, no_scales(fc1), fc2, no_scales(fc2))

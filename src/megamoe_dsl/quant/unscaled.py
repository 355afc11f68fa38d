"""Values that have no scales, BF16: what stands for these wherever others have them."""

import torch

from megamoe_dsl.quant.weights import ExpertWeights


def no_scales(values: torch.Tensor) -> torch.Tensor:
    """What stands for the scales of values that have none: uint8 [..., 0]."""
    return torch.empty(*values.shape[:-1], 0, dtype=torch.uint8, device=values.device)


def unscaled_weights(fc1: torch.Tensor, fc2: torch.Tensor) -> ExpertWeights:
    """Weights of one rank's El experts for bf16xbf16, as checkpoints have them: bf16 [El, 2I, H], rows [gate | up], and [El, H, I]."""
    return ExpertWeights(fc1, no_scales(fc1), fc2, no_scales(fc2))

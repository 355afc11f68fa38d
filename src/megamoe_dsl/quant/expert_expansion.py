"""A rank's weights in formats that kernels for 8-bit weights take."""

from __future__ import annotations

import torch

from .expansion import expand_e2m1
from .weights import ExpertWeights


def fp8_weights(weights: ExpertWeights) -> ExpertWeights:
    """E2M1 weights as those who have no kernel for them use them: E4M3 with a scale per 128 x 128, expert by expert.  Gate and up have
    blocks of their own; biases are as they were."""
    codes, scales = [], []
    for packed, sf, parts in ((weights.fc1, weights.fc1_sf, 2), (weights.fc2, weights.fc2_sf, 1)):
        both = (packed.unflatten(-2, (parts, -1)), sf.unflatten(-2, (parts, -1)))
        experts = [expand_e2m1(*one) for one in zip(*both, strict=True)]
        codes.append(torch.stack([one.flatten(0, 1) for one, _ in experts]))
        scales.append(torch.stack([one.flatten(0, 1) for _, one in experts]))
    return ExpertWeights(codes[0], scales[0], codes[1], scales[1], weights.fc1_bias, weights.fc2_bias)

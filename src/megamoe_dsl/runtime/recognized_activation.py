"""Which activation a function of gate and up computes, found by trying it: models name theirs in as many ways as there are classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..activation import ACTIVATIONS
from ..problem import Problem
from ..reference import activate

Gate = tuple[str, float | None]
"""An activation (activation.py), and its clamp; None is the activation's own."""
REACH = 20
"""The largest magnitude that is tried: beyond clamps of models."""


@torch.no_grad()
def recognized_activation(function: Callable[[torch.Tensor], torch.Tensor], interleaved: bool, limits: Iterable[float]) -> Gate | None:
    """The activation that `function` computes of float32 [1, 2 n] on the CPU, and its clamp, which is among `limits`.

    Columns are gate, then up, or alternate where `interleaved`.  None where the function computes no activation of the table.
    """
    numbers = torch.arange(-2 * REACH, 2 * REACH + 1, dtype=torch.float32, device="cpu") / 2
    gate, up = (one.flatten() for one in torch.meshgrid(numbers, numbers, indexing="ij"))
    halves = torch.cat([gate, up])[None]
    found = function(torch.stack([gate, up], dim=1).flatten()[None] if interleaved else halves)
    for name, activation in ACTIVATIONS.items():
        for clamp in (None, *(limits if activation.clampable else ())):
            formulas = Problem(256, 128, 1, 1, activation=name, activation_clamp=clamp, fast_math=False)
            expected = activate(formulas, halves, torch.ones(1))
            if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
                return name, clamp
    return None

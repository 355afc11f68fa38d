"""What `moe` needs of experts of transformers before it takes them: what their gate computes, and rows of weights that lie together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..activation import ACTIVATIONS
from ..problem import Problem
from ..reference import activate

Gate = tuple[str, float | None]
"""An activation (activation.py), and its clamp; None is the activation's own."""
REACH = 20
"""The largest magnitude that is tried: beyond clamps of models."""
KNOWN = "megamoe_activation"
"""Attribute of a layer of experts, once it is prepared: its activation and clamp, or None."""
LIMITS = ("limit", "swiglu_limit")
"""Attributes of layers that clamp gate and up."""
WEIGHTS = ("gate_up_proj", "down_proj")

Experts = Any
"""A module that `use_experts_implementation` decorates, or `FP8Experts`."""


def prepare(model: torch.nn.Module) -> int:
    """Prepares every layer of experts of a model, and returns how many there are.

    A layer prepares itself at its first call.  Prepare a model before it is compiled or captured in a CUDA graph where weights are
    transposed (gpt-oss), or the gate is not silu(gate) * up.
    """
    layers = [one for one in model.modules() if hasattr(one, "_apply_gate") and hasattr(one, "has_gate")]
    for one in layers:
        prepare_layer(one)
    return len(layers)


def prepare_layer(experts: Experts) -> None:
    """Recognizes the gate, and lays transposed weights out by rows."""
    if KNOWN not in vars(experts):
        setattr(experts, KNOWN, recognized(experts) if experts.has_gate else None)
    if is_transposed(experts) and not lies_by_rows(experts):
        for name in WEIGHTS:
            lay_out(getattr(experts, name))


def is_transposed(experts: Experts) -> bool:
    """Whether a weight is [experts, channels in, channels out]."""
    return bool(getattr(experts, "is_transposed", False))


def lies_by_rows(experts: Experts) -> bool:
    """Whether transposed weights have been laid out."""
    return all(getattr(experts, name).transpose(1, 2).is_contiguous() for name in WEIGHTS)


@torch.inference_mode(False)
@torch.no_grad()
def lay_out(weight: torch.Tensor) -> None:
    """Moves a weight [experts, K, rows] in memory, so that K of a row lies together; shape and values stay, and so do all who use them."""
    weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)


def recognized(experts: Experts) -> Gate | None:
    """The activation that a layer's `_apply_gate` computes, and its clamp; None where `moe` has no such activation."""
    limits = {value for name in LIMITS if (value := getattr(experts, name, None)) is not None}
    return recognized_activation(experts._apply_gate, not getattr(experts, "is_concatenated", True), limits)


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

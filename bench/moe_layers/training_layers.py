"""Layers of others with their gradients, by name: transformers' with torch's grouped products, and those that folders have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from moe_layers.quack_training import QuackGemms, QuackStep
from moe_layers.scattermoe import scattermoe_layer

GROUPED_MM, QUACK, SCATTERMOE = "grouped_mm", "quack", "scattermoe"


class TrainingSites(NamedTuple):
    """Folders with packages of others, or None."""

    quack: Path | None = None
    scattermoe: Path | None = None


@dataclass(frozen=True)
class TrainingLayer:
    """run      y of x, W1, W2, chosen experts and their weights, with a gradient
    in_turn  whether rows of W1 are gate and up in turn, rather than gate first
    again    whether its backward pass leaves alone what its forward pass has kept, so that it can be timed without the other
    tiles    by product those of the library that were the fastest, once it ran
    """

    run: Callable[..., torch.Tensor]
    in_turn: bool = False
    again: bool = True
    tiles: dict[str, str] = field(default_factory=dict)


def grouped_mm(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """transformers' `grouped_mm`."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    layer: Any = SimpleNamespace(gate_up_proj=w1, down_proj=w2, num_experts=len(w1), has_gate=True, has_bias=False, is_transposed=False)
    layer.has_post_expert_norm, layer._is_expert_parallel = False, False
    layer._apply_gate = lambda both: torch.nn.functional.silu(both.chunk(2, dim=-1)[0]) * both.chunk(2, dim=-1)[1]
    result: torch.Tensor = grouped_mm_experts_forward(layer, x, idx, weights)
    return result


def training_layers(ways: Sequence[str], sites: TrainingSites) -> dict[str, TrainingLayer]:
    """`grouped_mm` if it is among the ways, and those that have a folder.  Raises `ImportError` where it lacks something."""
    found = {GROUPED_MM: TrainingLayer(grouped_mm)} if GROUPED_MM in ways else {}
    if sites.quack is not None:
        gemms = QuackGemms.of(sites.quack)
        found[QUACK] = TrainingLayer(partial(QuackStep.apply, gemms), True, tiles=gemms.chosen)
    if sites.scattermoe is not None:
        found[SCATTERMOE] = TrainingLayer(scattermoe_layer(sites.scattermoe), again=False)
    return found

"""Layers of engines, and the order in which engines call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from megamoe_dsl.quant import ExpertWeights
from sglang_experts import SglangLayer
from vllm_experts import VllmLayer

BATCHES = (8, 4)
"""Sizes that graphs are captured for, the largest first, as engines do."""


class EngineLayer(Protocol):
    """One MoE layer of an engine."""

    def forward(self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """y of a step."""

    def reload(self, weights: ExpertWeights) -> None:
        """New weights, and the engine's hook after it."""


ENGINES: dict[str, Any] = {"sglang": SglangLayer, "vllm": VllmLayer}
Inputs3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def padded(given: Inputs3, static: Inputs3) -> None:
    """A batch into a graph's static tensors; rows past it are padding, which no expert takes."""
    for target, source, fill in zip(static, given, (0, -1, 0), strict=True):
        target.fill_(fill)
        target[: len(source)].copy_(source)


def call_sequence(
    layers: Sequence[EngineLayer],
    static_of: Callable[[int], Inputs3],
    inputs: Callable[[int, int], Inputs3],
    check: Callable[[int, Inputs3, torch.Tensor], None],
    capture: Callable[[Callable[[], list[torch.Tensor]]], tuple[list[torch.Tensor], Callable[[], None]]],
    reload: Callable[[], ExpertWeights],
    idle: bool,
) -> None:
    """An engine's life: warm-up, graphs of several batch sizes over layers that share a buffer, steps with padding, new weights, a step in
    which this rank is idle, and eager steps between.

    static_of   tensors of a batch size, whose padding is masked
    inputs      (tokens, seed) to BF16 tokens, experts and weights
    check       (layer, inputs, y)
    capture     a function to the tensors that it returns and to what replays it
    reload      weights for the first layer
    """

    def step() -> list[torch.Tensor]:
        return [layer.forward(*static) for layer in layers]

    graphs = {}
    for size in BATCHES:
        static = static_of(size)
        padded(tuple(tensor[:0] for tensor in static), static)  # type: ignore[arg-type]
        step()  # warm-up: kernels are prepared here
        graphs[size] = (static, *capture(step))
    for turn, tokens in enumerate((3, 8, 0, 1, 4)):
        if turn == 3:
            layers[0].reload(reload())
        static, outputs, replay = graphs[min(size for size in BATCHES if size >= tokens)]
        given = inputs(tokens, turn)
        padded(given, static)
        replay()
        for index, y in enumerate(outputs):
            check(index, given, y[:tokens].clone())
            assert not y[tokens:].any()
    given = inputs(0 if idle else 5, 9)
    for index, layer in enumerate(layers):
        check(index, given, layer.forward(*given).clone())

"""A rank's experts of a published checkpoint, all in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from megamoe_dsl.checkpoints import Checkpoint, load_experts
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, weight_names


def read_experts(
    problem: Problem,
    path: Path | str | Checkpoint,
    layer: int,
    rank: int = 0,
    *,
    device: torch.device | str = "cpu",
    **options: bool,
) -> ExpertWeights:
    """A rank's experts in checkpoint order, all in memory; arguments, defaults and errors as `load_experts`."""
    gathered = _Gathered(problem, torch.device(device))
    load_experts(gathered, path, layer, rank, **options)
    return gathered.weights()


class _Gathered:
    """An `ExpertTarget` that keeps what it is given."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem, self.device = problem, device
        self.experts: list[ExpertWeights] = []

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        if index != len(self.experts):
            raise ProblemError("index", index, f"the next, {len(self.experts)}")
        self.experts.append(weights)

    def weights(self) -> ExpertWeights:
        names = weight_names(self.problem)
        return ExpertWeights(**{name: torch.cat([getattr(one, name) for one in self.experts]) for name in names})

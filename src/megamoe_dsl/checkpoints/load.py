"""A rank's share of a checkpoint into a layer, an expert at a time.

    layer = MegaMoE(problem)
    load_experts(layer, "DeepSeek-V4-Flash", 3, rank=layer.symmetric.rank)

Only the rank's experts are read.  Beside the layer's own buffers no more than one expert is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from ..problem import Problem, integer_between
from ..quant import ExpertWeights
from .experts import PublishedExperts
from .files import Checkpoint, CheckpointError

LOG = logging.getLogger("megamoe_dsl")


class ExpertTarget(Protocol):
    """What experts are loaded into: a `MegaMoE`, or the `RankBuffers` of a simulated rank; weights are converted on its device."""

    @property
    def problem(self) -> Problem: ...

    @property
    def device(self) -> torch.device: ...

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """Replaces local expert `index` with the one of `weights`, in place."""


def load_experts(
    target: ExpertTarget,
    path: Path | str | Checkpoint,
    layer: int,
    rank: int = 0,
    *,
    start: int = 0,
    expand: bool = False,
    ignore_biases: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Loads a rank's experts of one layer of a published checkpoint, in place.

    path           a folder of safetensors files, with an index or without, or one file
    layer          of the model
    rank           whose experts: [rank * experts_per_rank, (rank + 1) * experts_per_rank)
    start          local expert to begin with: the `expert` of an earlier `CheckpointError`
    expand         E2M1 may become E4M3 for a recipe with FP8 weights: twice the bytes, the same values or an error (quant/expansion.py)
    ignore_biases  leave out the biases of gpt-oss, whose layer a `MegaMoE` without biases then does not compute
    progress       called with experts that are in place and experts of the rank; besides, `logging` has a line at INFO per tenth

    Raises `CheckpointError` that names tensor and file, with the local expert as `expert`, and `ProblemError` for rank and start.
    """
    problem = target.problem
    integer_between("rank", rank, 0, problem.num_ranks - 1, f"between 0 and num_ranks - 1 = {problem.num_ranks - 1}")
    most = problem.experts_per_rank
    integer_between("start", start, 0, most, f"between 0 and experts_per_rank = {most}")
    experts = PublishedExperts.of(path, layer)
    experts.check(problem, expand=expand, ignore_biases=ignore_biases)
    LOG.info("layer %d, rank %d: %d experts of layout %s from %s", layer, rank, most, experts.layout.name, experts.checkpoint.path)
    for index in range(start, most):
        try:
            _load_expert(target, experts, index, rank * most + index)
        except CheckpointError as error:
            error.expert = index
            raise
        if progress is not None:
            progress(index + 1, most)
        if (index + 1) * 10 // most > index * 10 // most:
            LOG.info("layer %d, rank %d: %d of %d experts", layer, rank, index + 1, most)


def _load_expert(target: ExpertTarget, experts: PublishedExperts, index: int, expert: int) -> None:
    weights = experts.read(expert, target.problem, target.device)
    try:
        target.load_expert(index, weights)
    except ValueError as error:  # a kernel's order may have no place for some values
        name = experts.names(expert)[0]
        raise CheckpointError(f"has no place in the layer: {error}", file=experts.checkpoint.files[name], tensor=name) from None

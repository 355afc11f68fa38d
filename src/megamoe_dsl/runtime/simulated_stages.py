"""The unfused layer in the simulator: on every rank's stream its stages, one launch after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..artifact.artifact import Artifact
from ..kernels.moe.unfused.family import STAGES
from ..problem import ProblemError
from ..quant import ExpertWeights
from ..sim import GlobalMemory, Launch
from .simulated import SimulatedMoE


class SimulatedStages(SimulatedMoE):
    """As `SimulatedMoE`, of the kernels of all stages; the race detector watches across them.

    stages  compiled kernels in the order of their launches, of the configurations that `stage_configs` makes of one

    Raises `ProblemError` for others.
    """

    def __init__(self, stages: Sequence[Artifact], weights: Sequence[ExpertWeights], **options: Any) -> None:
        given = [one.kernel.name for one in stages]
        wanted = [stage.name for stage in STAGES]
        if given != wanted:
            raise ProblemError("stages", given, f"the kernels {wanted}")
        super().__init__(stages[0], weights, **options)
        self.stages = list(stages)
        for buffers in self.ranks:
            assert len(buffers.results)  # is there before it is shared
        self.buffers = [[buffers.rebound(one.config, buffers.sym) for buffers in self.ranks] for one in stages]

    def visible(self, outputs: Sequence[torch.Tensor]) -> GlobalMemory:
        """As of one kernel, the tensor maps of all, and what they leave for one another, which nobody has written yet."""
        memory = super().visible(outputs)
        for stage, ranks in zip(self.stages, self.buffers, strict=True):
            for rank, buffers in enumerate(ranks):
                memory.add(buffers.maps, name=f"maps of {stage.kernel.name}", rank=rank, read_only=True)
        for rank, buffers in enumerate(self.ranks):
            memory.add(buffers.results, name="results", rank=rank, initialised=False)
        return memory

    def launches(self, rank: int, num_tokens: int, y: torch.Tensor) -> list[Launch]:
        pairs = zip(self.stages, self.buffers, strict=True)
        return [self.launch_of(stage, ranks[rank], rank, num_tokens, y) for stage, ranks in pairs]

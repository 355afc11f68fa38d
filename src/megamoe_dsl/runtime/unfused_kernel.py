"""The unfused layer bound to the buffers of one rank: its stages, one launch after another on one stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..artifact.artifact import Artifact
from ..artifact.store import ArtifactStore
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.unfused.family import stage_configs
from ..quant import ExpertWeights, TransformedWeights
from .buffers import RankBuffers
from .rank_kernel import WATCHDOG_NS, RankKernel
from .symmetric_memory import SymmetricBuffer


class UnfusedKernel:
    """As `RankKernel`, which a caller may have in its place: the same buffers, and y equal to the bit.

    stages  compiled kernels in the order of their launches
    """

    def __init__(
        self,
        stages: Sequence[Artifact],
        symmetric: SymmetricBuffer,
        weights: ExpertWeights | TransformedWeights | RankBuffers,
        watchdog_ns: int = WATCHDOG_NS,
    ) -> None:
        self.stages: list[RankKernel] = []
        for artifact in stages:
            self.stages.append(RankKernel(artifact, symmetric, weights, watchdog_ns))
            weights = self.stages[-1].buffers
        self.config, self.buffers = self.stages[0].config, self.stages[0].buffers

    def __call__(self, y: torch.Tensor) -> None:
        """Computes y, bf16 [num_tokens, hidden], from the inputs in the symmetric buffer."""
        for stage in self.stages:
            stage(y)

    def synchronize(self) -> None:
        """Waits for the device.  Raises `WatchdogError` when a launch on the buffer was trapped because a wait exceeded its limit."""
        self.stages[0].synchronize()


LayerKernel = RankKernel | UnfusedKernel


def bind(
    store: ArtifactStore,
    config: MegaMoeConfig,
    symmetric: SymmetricBuffer,
    weights: ExpertWeights | TransformedWeights | RankBuffers,
    watchdog_ns: int,
    fused: bool = True,
) -> LayerKernel:
    """The fused kernel of a configuration, or the stages that compute the same.  Raises as those do, and `ArtifactError`."""
    if fused:
        return RankKernel(store.get(config), symmetric, weights, watchdog_ns)
    return UnfusedKernel([store.get(one) for one in stage_configs(config)], symmetric, weights, watchdog_ns)

"""A GEMM on the simulator: its PTX on the CPU, one launch or several on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..artifact.artifact import Artifact
from ..blocks.gemm.base_config import BaseGemmConfig
from ..problem import ProblemError
from ..sim import GlobalMemory, Launch, Report, Simulator
from .gemm_tensors import LaunchTensors
from .simulated import simulated_launch


def simulate_gemm(
    artifact: Artifact,
    tensors: LaunchTensors,
    *,
    launches: int = 1,
    seed: int = 0,
    race: bool = True,
    progress: Callable[[int, float], None] | None = None,
) -> Report:
    """Computes `tensors.d`, `launches` times without a pause between them; what the simulator saw.

    Raises `ProblemError` for tensors that do not fit, and `SimError` for a fault or a deadlock.
    """
    config = artifact.config
    if not isinstance(config, BaseGemmConfig):
        raise ProblemError("artifact", type(config).__name__, "an Artifact of a GEMM")
    tensors.check(config.problem)
    scales, counters = tensors.scales(), torch.zeros(2, dtype=torch.int32)
    memory = memory_of(tensors.operands(scales), {**tensors.results(), "counters": counters})
    stream = []
    for number in range(launches):
        turn = number % 2 if config.prefetch_weights else 0  # one that begins to deal tiles early has another than the one before
        stream.append(launch_of(artifact, tensors.arguments(scales, counters[turn:].data_ptr())))
    report = Simulator(None, memory, seed=seed, race=race, progress=progress).run(stream)
    assert not counters.any()
    return report


def memory_of(read: Mapping[str, torch.Tensor], written: Mapping[str, torch.Tensor]) -> GlobalMemory:
    """What a launch may read, and what it may write."""
    memory = GlobalMemory()
    for tensors, read_only in ((read, True), (written, False)):
        for name, tensor in tensors.items():
            if tensor.numel():
                memory.add(tensor, name=name, rank=0, read_only=read_only)
    return memory


def simulate_launches(artifact: Artifact, memory: GlobalMemory, arguments: Mapping[str, int], **options: Any) -> Report:
    """A kernel's launch with these arguments; `options` of the `Simulator`.  Raises `SimError` for a fault or a deadlock."""
    return Simulator(None, memory, **options).run([launch_of(artifact, arguments)])


def launch_of(artifact: Artifact, arguments: Mapping[str, int]) -> Launch:
    """A kernel's launch in a stream, which begins as early as on a GPU."""
    kernel = artifact.kernel
    return simulated_launch(artifact, kernel.parameters(artifact.config, arguments), early=kernel.early)

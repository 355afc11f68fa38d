"""A GEMM over the rows of experts on the simulator: its PTX on the CPU, one launch or several on the same tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..artifact.artifact import Artifact
from ..kernels.gather_gemm.config import GatherGemmConfig
from ..problem import ProblemError
from ..sim import GlobalMemory, Report, Simulator
from .gather_tensors import GatherTensors
from .simulated_gemm import launch_of


def simulate_gather_gemm(
    artifact: Artifact,
    tensors: GatherTensors,
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
    if not isinstance(config, GatherGemmConfig):
        raise ProblemError("artifact", type(config).__name__, "an Artifact of a GEMM that gathers its rows")
    tensors.check(config.problem)
    scales, counter = tensors.scales(config.problem), torch.zeros(1, dtype=torch.int32)
    memory = GlobalMemory()
    read = {"a": tensors.a, "b": tensors.b, "ends": tensors.ends, "sources": tensors.sources, "b_sf": scales.b}
    for name, tensor in {**read, "a_sf": scales.a if config.problem.gathers else scales.a_storage}.items():
        if tensor is not None and tensor.numel():
            memory.add(tensor, name=name, rank=0, read_only=True)
    for name, tensor in (("d", tensors.d), ("counter", counter)):
        if tensor.numel():
            memory.add(tensor, name=name, rank=0)
    simulator = Simulator(artifact.ptx, memory, seed=seed, race=race, progress=progress)
    arguments = tensors.arguments(config.problem, scales, counter.data_ptr())
    report = simulator.run([launch_of(artifact, arguments)] * launches)
    assert not counter.any()
    return report

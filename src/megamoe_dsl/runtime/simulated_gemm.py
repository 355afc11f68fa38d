"""A GEMM on the simulator: its PTX on the CPU, one launch or several on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..artifact.artifact import Artifact
from ..kernels.gemm.base_config import BaseGemmConfig
from ..problem import ProblemError
from ..sim import GlobalMemory, Launch, Report, Simulator
from .gemm_tensors import GemmTensors


def simulate_gemm(
    artifact: Artifact,
    tensors: GemmTensors,
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
    scales, counter = tensors.scales(), torch.zeros(1, dtype=torch.int32)
    memory = GlobalMemory()
    read = {"a": tensors.a, "b": tensors.b, "groups": tensors.groups, "a_sf": scales.a_storage, "b_sf": scales.b}
    for name, tensor in read.items():
        if tensor is not None and tensor.numel():
            memory.add(tensor, name=name, rank=0, read_only=True)
    memory.add(tensors.d, name="d", rank=0)
    memory.add(counter, name="counter", rank=0)
    simulator = Simulator(artifact.ptx, memory, seed=seed, race=race, progress=progress)
    report = simulator.run([launch_of(artifact, tensors.arguments(scales, counter.data_ptr()))] * launches)
    assert not counter.any()
    return report


def launch_of(artifact: Artifact, arguments: Mapping[str, int]) -> Launch:
    """A launch of a kernel with these arguments."""
    config = artifact.config
    return Launch(
        grid=(config.num_sms, 1, 1),
        block=(config.num_threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        dynamic_smem=artifact.dynamic_smem,
        args=artifact.kernel.parameters(config, arguments),
    )

"""DeepGEMM's API on one simulated GPU: kernels run in the simulator, on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from megamoe_dsl.arch import SM90, Arch
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.compat.deep_gemm import buffer as buffers
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.quant import weight_names
from megamoe_dsl.target import Target
from simulated_gpu import NUM_SMS, SimulatedKernel, simulated_gpu


class OneRank:
    """A process group of one."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0

    def barrier(self) -> None: ...


@contextmanager
def simulated_hopper(patch: pytest.MonkeyPatch, kernels: Path, arch: Arch = SM90) -> Iterator[type[SimulatedKernel]]:
    """Buffers made inside are of SM90, or of another architecture, on the CPU, and find compiled kernels in a folder."""
    patch.setenv(FOLDER_VARIABLE, str(kernels))
    patch.setattr(buffers, "current_device", lambda: torch.device("cpu"))
    patch.setattr(buffers, "device_arch", lambda device: arch)
    patch.setattr(buffers, "gpu_target", lambda device: Target(arch, NUM_SMS, "simulated"))
    patch.setattr(buffers, "_asked", NUM_SMS)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with simulated_gpu(patch) as gpu:
        yield gpu


def visible(buffer: deep_gemm.SymmBuffer, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the kernels of a buffer touch, with tensors of the caller's."""
    found = {"sym": buffer.symmetric.sym, "peers": buffer.symmetric.peers, "watchdog": buffer.symmetric.watchdog}
    for i, kernels in enumerate(buffer._kernels.values()):
        for j, kernel in enumerate(kernels.values()):
            own = kernel.buffers
            found |= {f"maps{i}.{j}": own.maps, f"nowhere{i}.{j}": kernel._nowhere}
        shared = own.stats, *(getattr(own.weights, name) for name in weight_names(own.problem))
        found |= {f"{one.data_ptr():#x}": one for one in shared}  # once, whoever has them
    return found | tensors

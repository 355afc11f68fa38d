"""Compiled GEMM kernels on a device: loaded on first use, launched with arguments that are prepared once for their tensors."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch

from ..artifact.store import ArtifactStore
from ..blocks.gemm.base_config import BaseGemmConfig
from ..blocks.gemm.problem import GemmProblem
from ..cuda_device import require_cuda
from ..kernels.registry import choose
from ..problem import ProblemError
from ..target import Target
from .cuda_kernel import LAUNCHES, CudaKernel, encode_tensor_map
from .gemm_tensors import GemmTensors
from .symmetric_memory import device_arch
from .tile_counters import TileCounters, tile_counters

PREPARED = 4096  # launches whose tensor maps are kept


class LoadedGemm:
    """The kernel of one configuration, loaded on a device and launched on torch's current stream."""

    def __init__(self, config: BaseGemmConfig, store: ArtifactStore, device: torch.device) -> None:
        self.config, self._kernel = config, CudaKernel(store.get(config))
        self._counters: TileCounters | None = tile_counters(device) if config.dynamic_schedule else None
        self._prepare = lru_cache(PREPARED)(self._parameters)

    def _parameters(self, arguments: tuple[tuple[str, int], ...]) -> bytes:
        """Saved arguments (`ArgumentBlock`) of a launch; calls repeat the same addresses and shapes."""
        self._kernel.arguments.fill(self._kernel.artifact.kernel.parameters(self.config, dict(arguments), encode_tensor_map))
        return self._kernel.arguments.save()

    def prepare(self, tensors: GemmTensors, operands: dict[str, torch.Tensor] | None = None) -> bytes:
        """Saved arguments for `launch`, of tensors that have been checked; `operands` is the result of `GemmTensors.operands`."""
        problem = self.config.problem
        return self._prepare(tuple(tensors.arguments(problem, operands or tensors.operands(problem), 0).items()))

    def counter(self) -> int:
        """Address of the tile counter for a launch on torch's current stream; 0 with a static schedule."""
        return self._counters.address() if self._counters else 0

    def launch(self, prepared: bytes, counter: int, **moved: int) -> None:
        """Launches on torch's current stream with the result of `prepare`.  `moved` are new addresses of tensors, by argument; only tensors
        without a tensor map may move."""
        arguments = self._kernel.arguments
        arguments.restore(prepared)
        early = self._counters if self.config.prefetch_weights else None
        arguments.values.counter = early.early(counter) if early else counter
        for name, address in moved.items():
            setattr(arguments.values, name, address)
        if moved:
            arguments.forget()  # also for the next launch after one that fails
        self._kernel.launch()

    def __call__(self, tensors: GemmTensors) -> None:
        """Launches on torch's current stream; the tensors have been checked."""
        operands = tensors.operands(self.config.problem)  # what is copied for the kernel lives until the launch is on its way
        with LAUNCHES:
            self.launch(self.prepare(tensors, operands), self.counter())


def check_current(device: torch.device, field: str = "a.device") -> None:
    """Raises `ProblemError` unless launches on the current stream run on this device."""
    require_cuda(device, field)
    if device.index != torch.cuda.current_device():
        raise ProblemError("torch.cuda.current_device()", torch.cuda.current_device(), f"{device.index}, where the tensors are")


def gpu_target(device: torch.device) -> Target:
    """The `Target` of a GPU, for which configurations are chosen."""
    arch = device_arch(device)  # first: says where there is no GPU
    return Target(arch, torch.cuda.get_device_properties(device).multi_processor_count, torch.cuda.get_device_name(device))


@cache
def gemm_kernel(problem: GemmProblem, device: torch.device, rows: int, batch_invariant: bool = False) -> LoadedGemm:
    """The kernel for a number of rows; compiled or loaded from the cache on first use.  `batch_invariant` as in `gemm`."""
    return loaded_gemm(choose(problem, gpu_target(device), rows, batch_invariant=batch_invariant), device)


@cache
def loaded_gemm(config: BaseGemmConfig, device: torch.device) -> LoadedGemm:
    return LoadedGemm(config, ArtifactStore(), device)


@cache
def loaded_kernel(device: torch.device, kind: type[Any], *fields: Any, **options: Any) -> CudaKernel:
    """The kernel of the problem `kind(*fields)`, which has no number of rows; compiled or loaded from the cache on first use."""
    return CudaKernel(ArtifactStore().get(choose(kind(*fields), gpu_target(device), 1, **options)))

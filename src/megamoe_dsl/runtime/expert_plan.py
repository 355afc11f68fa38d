"""A layer on one GPU for a number of tokens: its kernels, and what their launches take, kept for the addresses that come back."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from ..artifact.cache import cache_folder
from ..artifact.store import ArtifactStore
from ..kernels.expert_routing.layer import ExpertLayer, LayerConfigs
from ..problem import ProblemError
from .argument_block import ArgumentBlock
from .cuda_kernel import CudaKernel
from .device_gemm import PREPARED, LoadedGemm, check_current, gpu_target
from .expert_call import ExpertCall, ExpertWeightsFp8
from .gemm_tensors import TMA_ALIGNMENT
from .tile_counters import tile_counters


class PreparedLaunches(NamedTuple):
    """Saved arguments (argument_block.py) of the four launches."""

    route: bytes
    fc1: bytes
    fc2: bytes
    total: bytes


class DeviceExperts:
    """The kernels of a layer on a device, of these configurations; `store` has them."""

    def __init__(self, configs: LayerConfigs, store: ArtifactStore, device: torch.device) -> None:
        self._fc1, self._fc2 = (LoadedGemm(config, store, device) for config in (configs.fc1, configs.fc2))
        self._route, self._sum = (CudaKernel(store.get(config)) for config in (configs.route, configs.total))
        self._counters = tile_counters(device)

    def __call__(self, call: ExpertCall) -> torch.Tensor:
        """y; the call's tensors have been checked."""
        self.route(call)
        self.fc1(call)
        self.fc2(call)
        self.sum(call)
        return call.y

    def route(self, call: ExpertCall) -> None:
        """The first launch."""
        self._fill_route(call, self._counters.address())
        self._route.launch()

    def _fill_route(self, call: ExpertCall, counter: int) -> ArgumentBlock:
        return _fill(self._route, {**call.arguments(call.route_tensors()), "counter": counter})

    def fc1(self, call: ExpertCall) -> None:
        """The second launch: Linear1."""
        self._fc1(call.fc1)

    def fc2(self, call: ExpertCall) -> None:
        """The third launch: Linear2."""
        self._fc2(call.fc2)

    def sum(self, call: ExpertCall) -> None:
        """The last launch."""
        _fill(self._sum, call.arguments(call.sum_tensors()))
        self._sum.launch()

    def prepare(self, call: ExpertCall) -> PreparedLaunches:
        """Of a call's workspace and weights; its tensors have been checked."""
        first, last = self._fill_route(call, 0).save(), _fill(self._sum, call.arguments(call.sum_tensors())).save()
        return PreparedLaunches(first, self._fc1.prepare(call.fc1), self._fc2.prepare(call.fc2), last)

    def launch(self, prepared: PreparedLaunches, x: int, topk_idx: int, topk_weights: int, y: int) -> None:
        """The four launches, with the caller's tensors at these addresses."""
        first, last = self._route.arguments, self._sum.arguments
        counter = self._counters.address()  # one for all: launches of a stream follow one another, and each leaves it 0
        first.restore(prepared.route)
        first.values.x, first.values.topk_idx, first.values.counter = x, topk_idx, counter
        self._route.launch()
        self._fc1.launch(prepared.fc1, counter)
        self._fc2.launch(prepared.fc2, counter)
        last.restore(prepared.total)
        last.values.weights, last.values.y = topk_weights, y
        self._sum.launch()


def _fill(kernel: CudaKernel, arguments: dict[str, int]) -> ArgumentBlock:
    kernel.arguments.fill(kernel.artifact.kernel.arguments(kernel.artifact.config).pack(**arguments))
    return kernel.arguments


class ExpertPlan:
    """A layer for a number of tokens, on the device of a call whose tensors have been checked; the plan of all calls like it."""

    def __init__(self, call: ExpertCall) -> None:
        self._layer, self._size, self._device = call.layer, call.region.size, call.x.device
        self._experts = device_experts(layer_configs(call.layer, call.tokens, call.x.device), call.x.device)
        self._prepared: dict[tuple[int, ...], PreparedLaunches] = {}

    def __call__(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        weights: tuple[torch.Tensor, ...],
        preactivations: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """y, without looking at the tensors' layouts again.  Raises `ProblemError` for the wrong device or alignment."""
        if self._device.index != torch._C._cuda_getDevice():
            check_current(self._device)
        workspace = torch.empty(self._size, dtype=torch.uint8, device=x.device)
        y, place = torch.empty_like(x), x.data_ptr()
        if place % TMA_ALIGNMENT:
            raise ProblemError("x.data_ptr()", place, f"a multiple of {TMA_ALIGNMENT}")
        stored = 0 if preactivations is None else preactivations.data_ptr()
        gathered = 0 if self._layer.formats.scaled else place  # from x itself, else from the workspace
        key = (workspace.data_ptr(), stored, gathered, *[tensor.data_ptr() for tensor in weights])
        prepared = self._prepared.get(key)
        if prepared is None:
            call = ExpertCall(self._layer, x, topk_idx, topk_weights, ExpertWeightsFp8(*weights), workspace, preactivations)
            call.check()
            if len(self._prepared) >= PREPARED:
                self._prepared.clear()
            prepared = self._prepared[key] = self._experts.prepare(call)
        self._experts.launch(prepared, place, topk_idx.data_ptr(), topk_weights.data_ptr(), y.data_ptr())
        return y


@lru_cache
def layer_configs(layer: ExpertLayer, tokens: int, device: torch.device) -> LayerConfigs:
    """For so many tokens on a device."""
    return layer.configs(gpu_target(device), tokens)


@lru_cache
def device_experts(configs: LayerConfigs, device: torch.device) -> DeviceExperts:
    """Kernels from the cache, which compiles what is missing."""
    return DeviceExperts(configs, ArtifactStore(cache_folder()), device)

"""A layer on one GPU for a number of tokens: its kernels, and their launch arguments, cached by the addresses of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

import torch

from ..artifact.store import ArtifactStore
from ..kernels.decode.config import DecodeConfig
from ..kernels.decode.family import few_configs, most_tokens
from ..kernels.expert_layer import ExpertLayer, LayerConfigs, chosen_experts
from ..problem import Problem, ProblemError
from ..target import Target
from .buffers import RankBuffers, check_aligned
from .call_plan import Tensors
from .cuda_kernel import LAUNCHES, CudaKernel, current_stream, encode_tensor_map, fill
from .device_gemm import PREPARED, LoadedGemm, check_current, gpu_target
from .expert_call import ExpertCall, LayerOperands
from .gemm_scales import TMA_ALIGNMENT
from .tile_counters import decode_memory, outside_pools, tile_counters
from .top_experts import TopExpertsPlan

KEPT = 64 << 20
"""Most bytes that are kept for a stream."""


class Scratch:
    """Workspace of calls on one device, kept per stream for the next calls: an allocation takes the host as long as a launch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[int, torch.Tensor] = {}

    def of(self, size: int, stream: int, capturing: bool) -> torch.Tensor:
        """uint8 [size or more] for a call on torch's current `stream`.  A captured call gets a new tensor, because its graph may run beside
        that stream, and so does a call that needs more than `KEPT`."""
        if capturing or size > KEPT:
            return torch.empty(size, dtype=torch.uint8, device=self._device)
        kept = self._kept.get(stream)
        if kept is None or kept.numel() < size:
            kept = self._kept[stream] = outside_pools(partial(torch.empty, size, dtype=torch.uint8, device=self._device))
            if kept.is_cuda:  # the allocating thread is on the default stream
                kept.record_stream(torch.cuda.current_stream(self._device))
        return kept


scratch = lru_cache(Scratch)


class PreparedLaunches(NamedTuple):
    """Saved arguments (`ArgumentBlock`) of the four launches."""

    route: bytes
    fc1: bytes
    parts: tuple[tuple[int, bytes, bytes], ...]  # first column, Linear2, sum


class DeviceExperts:
    """The kernels of a layer on a device.

    early    False: `route` and the sum start after the previous launch ends; for comparisons
    maps_x   whether Linear1 has a tensor map of x, so that prepared arguments depend on x's address
    moves_x  whether Linear1 takes x's address as an argument
    scratch  whether launches pass rows in the call's workspace
    """

    scratch = True

    def __init__(self, configs: LayerConfigs, store: ArtifactStore, device: torch.device, early: bool = True) -> None:
        self._fc1, self._fc2 = (LoadedGemm(config, store, device) for config in (configs.fc1, configs.fc2))
        self._route, self._sum = (CudaKernel(store.get(config), early) for config in (configs.route, configs.total))
        self.stream_state = tile_counters(device)
        gathers_x = not configs.fc1.problem.formats.scaled  # else it gathers from the workspace
        self.maps_x = gathers_x and "tokens" in configs.fc1.map_names
        self.moves_x = gathers_x and not self.maps_x

    def prepare(self, call: ExpertCall) -> PreparedLaunches:
        """The launches' arguments for a call's workspace and weights, whose tensors have been checked."""
        route, parts = fill(self._route, {**call.arguments(call.route_tensors()), "counter": 0}).save(), []
        for first, fc2 in call.fc2.items():
            total = fill(self._sum, call.arguments(call.sum_tensors(first))).save()
            parts.append((first, self._fc2.prepare(fc2), total))
        return PreparedLaunches(route, self._fc1.prepare(call.fc1), tuple(parts))

    def launch(
        self,
        prepared: PreparedLaunches,
        counter: int,
        x: int,
        topk_idx: int,
        topk_weights: int,
        y: int,
        fc1: Mapping[str, int],
        routed: Sequence[int] = (),
    ) -> None:
        """The four launches, with the caller's tensors at these addresses; `fc1` are further arguments of Linear1.  All launches use the
        same counter, which each leaves 0.  `routed`: addresses for ends, sources and positions, by default in the workspace."""
        first, last, groups = self._route.arguments, self._sum.arguments, {}
        first.restore(prepared.route)
        if routed:
            first.values.ends, first.values.sources, first.values.positions = routed
            groups = {"groups": routed[0]}
            fc1 = {**fc1, **groups, "sources": routed[1]}
        first.values.x, first.values.topk_idx, first.values.counter = x, topk_idx, counter
        self._route.launch()
        self._fc1.launch(prepared.fc1, counter, **fc1)
        for column, fc2, total in prepared.parts:
            self._fc2.launch(fc2, counter, **groups)
            last.restore(total)
            last.values.weights, last.values.y = topk_weights, y + 2 * column
            if routed:
                last.values.positions = routed[2]
            self._sum.launch()
        if routed:
            first.forget()
            last.forget()


class DeviceDecode:
    """As `DeviceExperts`, for a few tokens: one kernel, whose rows lie in the stream's `decode_memory`."""

    maps_x = moves_x = scratch = False

    def __init__(self, configs: tuple[DecodeConfig], store: ArtifactStore, device: torch.device) -> None:
        (self.config,) = configs
        self._kernel = CudaKernel(store.get(self.config))
        self.stream_state = decode_memory(self.config.memory, device)

    def prepare(self, call: ExpertCall) -> bytes:
        return self.prepare_places({name: getattr(call.operands, name).data_ptr() for name in ("w1", "w1_sf", "w2", "w2_sf")}, call.tokens)

    def prepare_places(self, places: Mapping[str, int], tokens: int) -> bytes:
        """As `prepare`, for weights at these addresses, by argument."""
        arguments = {**dict.fromkeys(("x", "topk_idx", "topk_weights", "y", "memory", "stats"), 0), **places, "num_tokens": tokens}
        self._kernel.arguments.fill(self._kernel.artifact.kernel.parameters(self.config, arguments, encode_tensor_map))
        return self._kernel.arguments.save()

    def launch(self, prepared: bytes, memory: int, x: int, topk_idx: int, topk_weights: int, y: int, *_: Any) -> None:
        """The launch, with the caller's tensors at these addresses and the stream's `memory`."""
        arguments = self._kernel.arguments
        arguments.restore(prepared)
        values = arguments.values
        values.x, values.topk_idx, values.topk_weights, values.y, values.memory = x, topk_idx, topk_weights, y, memory
        self._kernel.launch()


class FewTokens:
    """A few tokens of a `MegaMoE` with E2M1 weights on one rank: a launch without the symmetric buffer, with the fused kernel's bits.  Its
    kernels, in ascending order of `max_tokens`, use weights and statistics of the layer's `memory`."""

    def __init__(self, configs: Sequence[DecodeConfig], store: ArtifactStore, memory: RankBuffers) -> None:
        self.kernels = [DeviceDecode((config,), store, memory.device) for config in configs]
        self._index = memory.device.index
        self._places = {"w1": memory.address("fc1"), "w2": memory.address("fc2"), "w1_sf": 0, "w2_sf": 0, "stats": memory.stats.data_ptr()}
        self._prepared: dict[int, bytes] = {}

    @classmethod
    def of(cls, problem: Problem, target: Target, store: ArtifactStore, memory: RankBuffers, **options: Any) -> Self | None:
        """None on the CPU, and where `few_configs` of these `options` gives no configuration."""
        configs = few_configs(problem, target, **options) if memory.device.type == "cuda" else ()
        return cls(configs, store, memory) if configs else None

    def takes(self, tensors: Tensors) -> bool:
        """Whether it can compute a call, judging by shapes and dtypes."""
        (x, x_sf, topk_idx, _), config = tensors, self.kernels[-1].config
        most = min(config.max_tokens, most_tokens(config.problem))
        return x_sf is None and 0 < len(x) <= most and topk_idx.dtype == torch.int64

    def __call__(self, tensors: Tensors, y: torch.Tensor) -> bool:
        """Launches it; False if x or y is not aligned."""
        x, _, topk_idx, topk_weights = tensors
        tokens, place = len(x), x.data_ptr()
        if place % TMA_ALIGNMENT or y.data_ptr() % TMA_ALIGNMENT:
            return False
        kernel = next(one for one in self.kernels if tokens <= one.config.max_tokens)
        with LAUNCHES:
            if tokens not in self._prepared:
                self._prepared[tokens] = kernel.prepare_places(self._places, tokens)
            memory = kernel.stream_state.of(current_stream(self._index), torch.cuda.is_current_stream_capturing())
            kernel.launch(self._prepared[tokens], memory, place, topk_idx.data_ptr(), topk_weights.data_ptr(), y.data_ptr())
        return True


class ExpertPlan:
    """All calls with the layer, number of tokens and device of a checked call.  With a `router` the call first chooses experts from logits,
    into memory before the workspace."""

    def __init__(self, call: ExpertCall, router: TopExpertsPlan | None = None) -> None:
        self._layer, self._device = call.layer, call.x.device
        self._experts = device_experts(layer_kernels(call.layer, call.tokens, call.x.device), call.x.device)
        self._size, self._scratch = call.region.size if self._experts.scratch else 0, scratch(self._device)
        self._router = router
        self._chosen = chosen_experts(call.tokens, call.layer.topk if router else 0)
        self._weights_at = self._chosen.offset("topk_weights")
        self._prepared: dict[tuple[int, ...], Any] = {}

    def __call__(self, x: torch.Tensor, routing: Sequence[Any], given: LayerOperands, routed: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """y.  `routing` is topk_idx and topk_weights, or the router's tensors; int32 `routed` receives ends, sources and positions.
        Layouts are not checked again.  Raises `ProblemError` for the wrong current device or alignment."""
        index, place, before = self._device.index, x.data_ptr(), self._chosen.size
        if index != torch._C._cuda_getDevice():
            check_current(self._device, "x.device")
        if place % TMA_ALIGNMENT:
            raise ProblemError("x.data_ptr()", place, f"a multiple of {TMA_ALIGNMENT}")
        fc1 = {"a": place} if self._experts.moves_x else {}
        if given.preactivations is not None:
            check_aligned("preactivations", given.preactivations, TMA_ALIGNMENT)
            fc1["preactivations"] = given.preactivations.data_ptr()
        stream, capturing = current_stream(index), torch.cuda.is_current_stream_capturing()
        y = torch.empty_like(x)
        with LAUNCHES:
            memory = self._scratch.of(before + self._size, stream, capturing)
            start = memory.data_ptr()
            key = (
                start,
                place if self._experts.maps_x else 0,
                *[tensor.data_ptr() for tensor in (*given.weights, given.factors) if tensor is not None],
            )
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self._prepare(key, memory, x, routing, given)
            if self._router is None:
                topk_idx, topk_weights = (one.data_ptr() for one in routing)
            else:
                topk_idx, topk_weights = start, start + self._weights_at
                self._router.launch(*routing, topk_idx, topk_weights)
            state = self._experts.stream_state.of(stream, capturing)
            kept = [one.data_ptr() for one in routed]
            self._experts.launch(prepared, state, place, topk_idx, topk_weights, y.data_ptr(), fc1, kept)
        return y

    def _prepare(self, key: tuple[int, ...], memory: torch.Tensor, x: torch.Tensor, routing: Sequence[Any], given: LayerOperands) -> Any:
        before = self._chosen.size
        chosen = routing if self._router is None else [self._chosen.view(memory[:before], one) for one in ("topk_idx", "topk_weights")]
        workspace = memory[before : before + self._size]
        call = ExpertCall(self._layer, x, chosen[0], chosen[1], given.with_scales(), workspace)
        call.check()
        if len(self._prepared) >= PREPARED:
            self._prepared.clear()
        prepared = self._prepared[key] = self._experts.prepare(call)
        return prepared


@lru_cache
def layer_kernels(layer: ExpertLayer, tokens: int, device: torch.device) -> LayerConfigs | tuple[DecodeConfig]:
    return layer.kernels(gpu_target(device), tokens)


@lru_cache
def device_experts(configs: LayerConfigs | tuple[DecodeConfig], device: torch.device) -> DeviceExperts | DeviceDecode:
    """Kernels from the cache, which compiles what is missing."""
    kind: Any = DeviceExperts if isinstance(configs, LayerConfigs) else DeviceDecode
    made: DeviceExperts | DeviceDecode = kind(configs, ArtifactStore(), device)
    return made

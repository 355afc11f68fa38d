"""A MoE layer on one GPU, as an operator that torch.compile takes as one node.

    y = moe(x, w1, w1_sf, w2, w2_sf, topk_idx, topk_weights)
    y = moe(x, w1, w1_sf, w2, w2_sf, router_logits=logits, topk=8)

A call launches four kernels on torch's current stream and does not synchronise.  The first call with a shape compiles them or loads them
from the cache: before a graph is captured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..artifact.cache import cache_folder
from ..artifact.store import ArtifactStore
from ..kernels.expert_routing.layer import ExpertLayer, LayerConfigs
from ..problem import ProblemError
from .cuda_kernel import CudaKernel
from .device_gemm import LoadedGemm, check_current, gpu_target
from .expert_call import ExpertCall, ExpertWeightsFp8


class DeviceExperts:
    """The kernels of a layer on a device, of these configurations; `store` has them."""

    def __init__(self, configs: LayerConfigs, store: ArtifactStore, device: torch.device) -> None:
        self._fc1, self._fc2 = (LoadedGemm(config, store, device) for config in (configs.fc1, configs.fc2))
        self._route, self._sum = (CudaKernel(store.get(config)) for config in (configs.route, configs.total))

    def __call__(self, call: ExpertCall) -> torch.Tensor:
        """y; the call's tensors have been checked."""
        self.route(call)
        self.fc1(call)
        self.fc2(call)
        self.sum(call)
        return call.y

    def route(self, call: ExpertCall) -> None:
        """The first launch."""
        self._launch(self._route, call, call.arguments(call.route_tensors()))

    def fc1(self, call: ExpertCall) -> None:
        """The second launch: Linear1."""
        self._fc1(call.fc1)

    def fc2(self, call: ExpertCall) -> None:
        """The third launch: Linear2."""
        self._fc2(call.fc2)

    def sum(self, call: ExpertCall) -> None:
        """The last launch."""
        self._launch(self._sum, call, call.arguments(call.sum_tensors()))

    @staticmethod
    def _launch(kernel: CudaKernel, call: ExpertCall, arguments: dict[str, int]) -> None:
        kernel(kernel.artifact.kernel.arguments(kernel.artifact.config).pack(**arguments))


@lru_cache
def layer_configs(layer: ExpertLayer, tokens: int, device: torch.device) -> LayerConfigs:
    """For so many tokens on a device."""
    return layer.configs(gpu_target(device), tokens)


@lru_cache
def device_experts(configs: LayerConfigs, device: torch.device) -> DeviceExperts:
    """Kernels from the cache, which compiles what is missing."""
    return DeviceExperts(configs, ArtifactStore(cache_folder()), device)


def moe(
    x: torch.Tensor,
    w1: torch.Tensor,
    w1_sf: torch.Tensor,
    w2: torch.Tensor,
    w2_sf: torch.Tensor,
    topk_idx: torch.Tensor | None = None,
    topk_weights: torch.Tensor | None = None,
    *,
    router_logits: torch.Tensor | None = None,
    topk: int | None = None,
    gate_up: str = "gate_first",
    activation: str = "silu",
) -> torch.Tensor:
    """The layer, all of whose E experts are on this GPU: bfloat16 [T, H].  Hopper.

    x              bfloat16 [T, H], H a multiple of 128; quantised to E4M3 per token and 128
    w1, w1_sf      float8_e4m3fn [E, 2 I, H], float32 [E, 2 I / 128, H / 128]: rows of gate and up as `gate_up` says
    w2, w2_sf      float8_e4m3fn [E, H, I], float32 [E, H / 128, I / 128]
    topk_idx       int64 or int32 [T, topk], -1 masks a slot; and topk_weights, float32 [T, topk]
    router_logits  [T, E], instead of those: the `topk` highest, weighted by their softmax
    gate_up        gate_first, up_first, or interleaved
    activation     of gate and up (activation.py)

    Gate and up are rounded to BF16, their product to E4M3 with a power of two per row and 128; a token's rows are BF16, added in FP32 in
    the order of its slots.  Raises `ProblemError`, which names the tensor and what is wrong with it, before anything is launched.
    """
    if router_logits is not None:
        if topk_idx is not None or topk_weights is not None:
            raise ProblemError("topk_idx", "a tensor", "None with router_logits")
        topk_weights, topk_idx = top_experts(router_logits, topk)
    elif topk is not None:
        raise ProblemError("topk", topk, "None without router_logits")
    if topk_idx is None or topk_weights is None:
        raise ProblemError("topk_idx, topk_weights", None, "tensors, or router_logits given")
    return moe_op(x, topk_idx, topk_weights, w1, w1_sf, w2, w2_sf, gate_up, activation)


def top_experts(logits: torch.Tensor, topk: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, float32, and experts of the highest logits.  Raises `ProblemError`."""
    if logits.dim() != 2:
        raise ProblemError("router_logits.shape", tuple(logits.shape), "(tokens, experts)")
    if topk is None or not 1 <= topk <= logits.shape[1]:
        raise ProblemError("topk", topk, f"between 1 and {logits.shape[1]} with router_logits")
    chosen = logits.float().topk(topk, dim=1)
    return chosen.values.softmax(dim=1), chosen.indices


def layer_of(x: torch.Tensor, topk_idx: torch.Tensor, w1: torch.Tensor, gate_up: str, activation: str) -> ExpertLayer:
    """The layer of such tensors.  Raises `ProblemError`."""
    for name, tensor, shape, dims in (("w1", w1, "(experts, 2 * intermediate, hidden)", 3), ("topk_idx", topk_idx, "(tokens, topk)", 2)):
        if tensor.dim() != dims:
            raise ProblemError(f"{name}.shape", tuple(tensor.shape), shape)
    return ExpertLayer(w1.shape[2], w1.shape[1] // 2, w1.shape[0], topk_idx.shape[1], gate_up, activation)


@torch.library.custom_op("megamoe_dsl::moe", mutates_args=())
def moe_op(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    w1: torch.Tensor,
    w1_sf: torch.Tensor,
    w2: torch.Tensor,
    w2_sf: torch.Tensor,
    gate_up: str,
    activation: str,
) -> torch.Tensor:
    """`moe` of chosen experts."""
    layer = layer_of(x, topk_idx, w1, gate_up, activation)
    idx = topk_idx.long() if topk_idx.dtype == torch.int32 else topk_idx
    call = ExpertCall(layer, x, idx, topk_weights, ExpertWeightsFp8(w1, w1_sf, w2, w2_sf))
    call.check()
    if not call.tokens:
        return call.y
    check_current(x.device)
    return device_experts(layer_configs(layer, call.tokens, x.device), x.device)(call)


@moe_op.register_fake
def _(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty_like(x)


__all__ = ["moe"]

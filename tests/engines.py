"""Layers of engines, and the order in which engines call them.  vLLM's makes the calls of DeepGEMM that an older release makes
(models/deepseek_v4/nvidia/sm90_mega_moe.py); SGLang's is in sglang_experts.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Protocol

import pytest
import torch

from megamoe_dsl.compat.engines import vllm
from megamoe_dsl.compat.engines.fused_calls import Swap
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from sglang_experts import SglangLayer

BATCHES = (8, 4)
"""Sizes that graphs are captured for, the largest first, as engines do."""


def others_call(*_: object, **__: object) -> None:
    """DeepGEMM's own kernel, which must not run."""
    raise AssertionError("DeepGEMM's own function was called")


def fake_packages(patch: pytest.MonkeyPatch, ranks_tokens: Callable[[], list[int]]) -> dict[str, ModuleType]:
    """DeepGEMM and what the adapters touch of the engines, in sys.modules."""
    fused = ("get_symm_buffer_for_mega_moe", "get_symm_buffer_for_sm90_mega_moe", "fp8_mega_moe", "fp8_fp4_mega_moe")
    names = (*fused, "transform_weights_for_mega_moe_sm90", "mega_moe_pre_dispatch_sm90", "fp8_gemm_nt")
    deep_gemm = make_module("deep_gemm", **dict.fromkeys(names, others_call))
    metadata = SimpleNamespace(dp_metadata=SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor([0])))

    def context() -> SimpleNamespace:
        metadata.dp_metadata.num_tokens_across_dp_cpu = torch.tensor(ranks_tokens(), device="cpu")
        return metadata

    found = (
        deep_gemm,
        make_module(vllm.DEEP_GEMM, _import_deep_gemm=lambda: deep_gemm, _fp8_fp4_mega_moe_impl=others_call),
        make_module(vllm.CONTEXT, is_forward_context_available=lambda: True, get_forward_context=context),
    )
    for module in found:
        patch.setitem(sys.modules, module.__name__, module)
    return {module.__name__: module for module in found}


def make_module(name: str, **attributes: object) -> ModuleType:
    """A module with these attributes."""
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


class EngineLayer(Protocol):
    """One MoE layer of an engine."""

    def forward(self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """y of a step."""

    def reload(self, weights: ExpertWeights) -> None:
        """New weights, and the engine's hook after it."""


class VllmLayer:
    """`DeepseekV4MegaMoESM90Experts`."""

    buffers: ClassVar[dict[object, Any]] = {}
    install: ClassVar[Callable[[], Swap]] = staticmethod(vllm.install)

    def __init__(self, problem: Problem, group: Any, weights: ExpertWeights) -> None:
        self.problem, self.group = problem, group
        self.transformed: Any = None
        self.deep_gemm: Any = importlib.import_module(vllm.DEEP_GEMM)._import_deep_gemm()
        self.plain = weights
        self.stats = torch.zeros(problem.experts_per_rank, dtype=torch.int32, device=weights.fc1.device)
        self.finalize_weights()

    def finalize_weights(self) -> None:
        pair = ((self.plain.fc1, self.plain.fc1_sf.clone()), (self.plain.fc2, self.plain.fc2_sf.clone()))
        self.transformed = self.deep_gemm.transform_weights_for_mega_moe_sm90(*pair)

    def reload(self, weights: ExpertWeights) -> None:
        """Into the transformed tensors, expert by expert, as its expert balancing moves them."""
        pair = ((weights.fc1, weights.fc1_sf), (weights.fc2, weights.fc2_sf))
        new = self.deep_gemm.transform_weights_for_mega_moe_sm90(*pair)
        for old, other in zip((*self.transformed[0], *self.transformed[1]), (*new[0], *new[1]), strict=True):
            for one, source in zip(old.view(len(old), -1), other.view(len(other), -1), strict=True):
                one.copy_(source)

    def forward(self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        p, tokens = self.problem, hidden.shape[0]
        shape = (p.num_experts, p.max_tokens_per_rank, p.topk, p.hidden, p.intermediate)
        key = (id(self.group), *shape)
        if key not in self.buffers:
            self.buffers[key] = self.deep_gemm.get_symm_buffer_for_sm90_mega_moe(self.group, *shape)
        buf = self.buffers[key]
        y = torch.empty_like(hidden)
        codes, scales = cast(hidden)
        buf.x[:tokens].copy_(codes)
        buf.x_sf[:tokens].copy_(scales)
        buf.topk_idx[:tokens].copy_(topk_ids.to(torch.int64))
        buf.topk_weights[:tokens].copy_(topk_weights)
        options = {"cumulative_local_expert_recv_stats": self.stats, "activation_clamp": p.activation_clamp, "fast_math": True}
        self.deep_gemm.fp8_mega_moe_sm90(y, *self.transformed, buf, **options)
        return y


def cast(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """vLLM's `deep_gemm.utils.per_token_cast_to_fp8`."""
    from megamoe_dsl.compat.deep_gemm.utils import per_token_cast_to_fp8

    return per_token_cast_to_fp8(hidden, use_ue8m0=False, gran_k=128)


ENGINES: dict[str, Any] = {"sglang": SglangLayer, "vllm": VllmLayer}
Inputs3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def padded(given: Inputs3, static: Inputs3) -> None:
    """A batch into a graph's static tensors; rows past it are padding, which no expert takes."""
    for target, source, fill in zip(static, given, (0, -1, 0), strict=True):
        target.fill_(fill)
        target[: len(source)].copy_(source)


def call_sequence(
    layers: Sequence[EngineLayer],
    static_of: Callable[[int], Inputs3],
    inputs: Callable[[int, int], Inputs3],
    check: Callable[[int, Inputs3, torch.Tensor], None],
    capture: Callable[[Callable[[], list[torch.Tensor]]], tuple[list[torch.Tensor], Callable[[], None]]],
    reload: Callable[[], ExpertWeights],
    idle: bool,
) -> None:
    """An engine's life: warm-up, graphs of several batch sizes over layers that share a buffer, steps with padding, new weights, a step in
    which this rank is idle, and eager steps between.

    static_of   tensors of a batch size, whose padding is masked
    inputs      (tokens, seed) to BF16 tokens, experts and weights
    check       (layer, inputs, y)
    capture     a function to the tensors that it returns and to what replays it
    reload      weights for the first layer
    """

    def step() -> list[torch.Tensor]:
        return [layer.forward(*static) for layer in layers]

    graphs = {}
    for size in BATCHES:
        static = static_of(size)
        padded(tuple(tensor[:0] for tensor in static), static)  # type: ignore[arg-type]
        step()  # warm-up: kernels are prepared here
        graphs[size] = (static, *capture(step))
    for turn, tokens in enumerate((3, 8, 0, 1, 4)):
        if turn == 3:
            layers[0].reload(reload())
        static, outputs, replay = graphs[min(size for size in BATCHES if size >= tokens)]
        given = inputs(tokens, turn)
        padded(given, static)
        replay()
        for index, y in enumerate(outputs):
            check(index, given, y[:tokens].clone())
            assert not y[tokens:].any()
    given = inputs(0 if idle else 5, 9)
    for index, layer in enumerate(layers):
        check(index, given, layer.forward(*given).clone())

"""Experts of SGLang, as much of them as the adapter touches, and the modules that it imports; both held to the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from engine_stand_in import stand_in

from megamoe_dsl.arch import SM90
from megamoe_dsl.compat.engines import sglang, shared_parts
from megamoe_dsl.compat.engines.shared_parts import prepared_bounds, symmetric_of
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, decode_ue8m0
from megamoe_dsl.runtime import layer
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from simulated_gpu import SimulatedKernel, simulated_gpu, visible

CONFIG = {
    "activation": "silu",
    "is_gated": True,
    "gemm1_alpha": None,
    "gemm1_beta": None,
    "gemm1_clamp_limit": None,
    "swiglu_limit": None,
    "gate_up_interleaved": True,
    "apply_router_weight_on_input": False,
}
"""Fields of a MoeRunnerConfig, with SGLang's defaults."""


class HookType(Enum):
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    """Notes what is registered."""

    hooks: ClassVar[dict[str, tuple[Callable[..., Any], HookType]]] = {}

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        cls.hooks[target] = hook, hook_type


class Field:
    """One of SGLang's environment variables."""

    def __init__(self, value: int, given: bool = False) -> None:
        self.value, self.given = value, given

    def get(self) -> int:
        return self.value

    def is_set(self) -> bool:
        return self.given


def sglang_modules(patch: pytest.MonkeyPatch, capacity: int, tokens: list[int], group: Any = None, reserved: Field | None = None) -> None:
    """What the adapter imports; `tokens` is the list of every data-parallel rank's."""
    envs = SimpleNamespace(
        SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK=Field(capacity),
        SGLANG_OPT_DEEPGEMM_MEGA_MOE_RESERVED_SMS=reserved or Field(2),
    )
    backend = SimpleNamespace(is_megamoe=lambda: True)
    parallel, settings = SimpleNamespace(moe_ep_group=SimpleNamespace(device_group=group)), SimpleNamespace(watchdog_timeout=300.0)
    values: dict[str, object] = {
        "sglang.srt.environ.envs": envs,
        "sglang.srt.layers.dp_attention.get_dp_global_num_tokens": lambda: tokens,
        "sglang.srt.layers.moe.utils.get_moe_a2a_backend": lambda: backend,
        "sglang.srt.plugins.hook_registry.HookRegistry": HookRegistry,
        "sglang.srt.plugins.hook_registry.HookType": HookType,
        "sglang.srt.runtime_context.get_parallel": lambda: parallel,
        "sglang.srt.runtime_context.get_server_args": lambda: settings,
    }
    stand_in(patch, "sglang", values)


def sglang_experts(problem: Problem, weights: ExpertWeights, names: dict[str, str] = sglang.FP8_NAMES, **config: object) -> Any:
    """A module with a layer's parameters as SGLang has loaded them: packed FP4 as int8, with float32 scales."""
    experts: Any = torch.nn.Module()
    for field, name in names.items():
        experts.register_parameter(name, torch.nn.Parameter(as_loaded(problem, field, getattr(weights, field)), requires_grad=False))
    experts.num_experts, experts.top_k, experts.moe_ep_size = problem.num_experts, problem.topk, problem.num_ranks
    experts.moe_tp_size, experts.with_bias, experts._mega_moe_w4a4, experts._mega_moe_weights_built = 1, False, False, False
    experts.should_fuse_routed_scaling_factor_in_topk = False
    experts.moe_runner_config = SimpleNamespace(**{**CONFIG, "swiglu_limit": problem.activation_clamp, **config})
    return experts


def as_loaded(problem: Problem, field: str, tensor: torch.Tensor) -> torch.Tensor:
    """A field of `ExpertWeights` with SGLang's dtype."""
    if tensor.dtype != torch.uint8:
        return tensor.clone()
    return decode_ue8m0(tensor).float() if field.endswith("_sf") else tensor.clone().view(torch.int8)


def move_experts(experts: torch.nn.Module, order: list[int]) -> None:
    """As SGLang's balancing of experts does: every parameter's slices change places."""
    for parameter in experts.parameters():
        parameter.data.copy_(parameter.data[order].clone())


class SglangLayer:
    """A layer as SGLang's models call it."""

    @staticmethod
    def install() -> pytest.MonkeyPatch:
        """The modules that the adapter imports, until `undo()`."""
        import torch.distributed as dist

        patch = pytest.MonkeyPatch()
        sglang_modules(patch, 8, [], dist.group.WORLD if dist.is_initialized() else None)
        return patch

    def __init__(self, problem: Problem, group: Any, weights: ExpertWeights) -> None:
        self.problem = problem
        sglang.environment().SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK = Field(problem.max_tokens_per_rank)
        self.experts = sglang_experts(problem, weights)
        sglang.build_sm90_mega_moe_experts_weights(self.experts)

    def reload(self, weights: ExpertWeights) -> None:
        """A weight update: into the parameters, then the hook that follows a load."""
        for field, name in sglang.FP8_NAMES.items():
            getattr(self.experts, name).data.copy_(as_loaded(self.problem, field, getattr(weights, field)))
        sglang.build_sm90_mega_moe_experts_weights(self.experts)

    def forward(self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """As `Qwen3MoeSparseMoeBlock._forward_mega_moe`, whose idle ranks have no routing."""
        tokens = hidden.shape[0]
        return sglang.run_mega_routed_experts(
            self.experts,
            hidden,
            topk_ids if tokens else None,
            topk_weights if tokens else None,
            hidden_size=self.problem.hidden,
            intermediate_size=self.problem.intermediate,
            top_k=self.problem.topk,
            num_tokens=tokens,
            activation_clamp=self.problem.activation_clamp,
        )


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where the engines' layers are: a Hopper GPU, or a simulated one, which sees tensors of the CPU."""


@contextmanager
def on_a_gpu(patch: pytest.MonkeyPatch, kernels: Path) -> Iterator[None]:
    """One Hopper GPU, simulated where there is none; compiled kernels go to a folder."""
    if DEVICE == "cuda":
        patch.setenv(FOLDER_VARIABLE, str(kernels))
        yield
        return
    with on_a_simulated_gpu(patch, kernels):
        yield


def captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """On a GPU, what replays a step's CUDA graph and copies its result; otherwise the step."""
    if DEVICE != "cuda":
        return step
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return y.clone()

    return replay


@contextmanager
def on_a_simulated_gpu(patch: pytest.MonkeyPatch, kernels: Path) -> Iterator[type[SimulatedKernel]]:
    """One Hopper GPU whose kernels see the tensors of a call; compiled ones go to a folder."""
    for kept in (prepared_bounds, symmetric_of):
        kept.cache_clear()
    with simulated_gpu(patch) as gpu:
        patch.setenv(FOLDER_VARIABLE, str(kernels))
        patch.setattr(shared_parts, "gpu_target", layer.gpu_target)
        patch.setattr(SymmetricBuffer, "allocate", partial(SymmetricBuffer.allocate, arch=SM90, device="cpu"))
        launch = MegaMoE.launch

        def seen(self: MegaMoE, tensors: Any, numbers: Any, out: torch.Tensor | None = None) -> torch.Tensor:
            x, x_sf, idx, weights = tensors
            y = torch.full((len(x), self.problem.hidden), float("nan"), dtype=torch.bfloat16)
            gpu.tensors = visible(self, x=x, idx=idx.long(), weights=weights, y=y)
            return launch(self, (x, x_sf, gpu.tensors["idx"], weights), numbers, y)

        patch.setattr(MegaMoE, "launch", seen)
        yield gpu


def random_routing(problem: Problem, tokens: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BF16 tokens, int32 experts and weights."""
    generator = torch.Generator().manual_seed(tokens)
    idx = torch.rand(tokens, problem.num_experts, generator=generator).topk(problem.topk).indices.int()
    x, weights = torch.randn(tokens, problem.hidden, generator=generator), torch.rand(tokens, problem.topk, generator=generator)
    return x.bfloat16().to(device), idx.to(device), weights.to(device)

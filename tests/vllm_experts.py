"""Experts of vLLM, as much of them as the adapter touches, and the modules that it imports; both held to the record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from engine_stand_in import stand_in

from megamoe_dsl.compat.engines import vllm
from megamoe_dsl.compat.engines.vllm import FP8, LAYERS, MXFP4, ExpertsMethod
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights

PARALLEL = {"tp_size": 1, "dp_size": 1, "pcp_size": 1, "ep_size": 1, "use_ep": False}
CONFIG = {
    "in_dtype": torch.bfloat16,
    "device": "cpu",
    "has_bias": False,
    "is_lora_enabled": False,
    "elastic_ep_max_dp_size": None,
    "skip_final_all_reduce": False,
    "swiglu_limit": None,
    "swiglu_alpha": None,
    "swiglu_beta": None,
    "activation_situ_beta": None,
    "activation_situ_linear_beta": None,
}
"""Fields of a FusedMoEConfig, with vLLM's defaults."""


class PluggableLayer:
    """Notes what is registered."""

    registered: ClassVar[list[tuple[type, str]]] = []

    @classmethod
    def register_oot(cls, layer: type, name: str) -> None:
        cls.registered.append((layer, name))


def vllm_modules(patch: pytest.MonkeyPatch, tokens: list[int] | None, group: Any = None, dbo: bool = False) -> dict[str, type]:
    """What the adapter imports; `tokens` is the list of every data-parallel rank's.  Returns the registry of replaced layers."""
    step = None if tokens is None else SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(tokens, device="cpu"))
    settings = SimpleNamespace(parallel_config=SimpleNamespace(enable_dbo=dbo))
    registry: dict[str, type] = {}
    experts = type(
        "RoutedExperts",
        (torch.nn.Module,),
        {"_get_quant_method": lambda self, *_: self.theirs, "get_expert_weights": lambda _: ("theirs",)},
    )
    values: dict[str, object] = {
        "vllm.config.get_current_vllm_config": lambda: settings,
        "vllm.distributed.parallel_state.get_ep_group": lambda: SimpleNamespace(device_group=group),
        "vllm.envs": SimpleNamespace(VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=300),
        "vllm.forward_context.get_forward_context": lambda: SimpleNamespace(dp_metadata=step),
        "vllm.forward_context.is_forward_context_available": lambda: step is not None,
        "vllm.model_executor.layers.fused_moe.config.FusedMoEQuantConfig": SimpleNamespace(make=lambda: "nothing quantized"),
        "vllm.model_executor.custom_op.PluggableLayer": PluggableLayer,
        "vllm.model_executor.custom_op.op_registry_oot": registry,
        "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase": type("FusedMoEMethodBase", (), {}),
        "vllm.model_executor.layers.fused_moe.routed_experts.RoutedExperts": experts,
    }
    stand_in(patch, "vllm", values)
    return registry


def vllm_method(kind: str, **fields: Any) -> Any:
    """A method of vLLM's for a checkpoint's experts."""
    module, _, name = kind.rpartition(".")
    own = {"weight_block_size": [128, 128], "weight_scale_name": "weight_scale_inv"} if kind == FP8 else {}
    return type(name, (), {"__module__": module, **own, **fields})()


def moe_config(problem: Problem, **fields: Any) -> Any:
    """Of a layer."""
    ranks = problem.num_ranks
    parallel = {"ep_size": ranks, "use_ep": ranks > 1, **{name: fields.pop(name) for name in PARALLEL if name in fields}}
    given = {
        "num_experts": problem.num_experts,
        "experts_per_token": problem.topk,
        "hidden_dim": problem.hidden,
        "intermediate_size": problem.intermediate,
        "max_num_tokens": problem.max_tokens_per_rank,
        "activation": SimpleNamespace(value=fields.pop("name", "silu")),
        "swiglu_limit": problem.activation_clamp,
    }
    return SimpleNamespace(**{**CONFIG, **given, **fields}, moe_parallel_config=SimpleNamespace(**{**PARALLEL, **parallel}))


def routed_experts(**fields: Any) -> Any:
    """A layer of experts without parameters."""
    experts: Any = torch.nn.Module()
    own = {"apply_router_weight_on_input": False, "expert_map_manager": SimpleNamespace(placement_strategy="linear"), **fields}
    for name, value in own.items():
        setattr(experts, name, value)
    return experts


class VllmLayer:
    """A layer as vLLM's runner calls it, after its router."""

    @staticmethod
    def install() -> pytest.MonkeyPatch:
        """The modules that the adapter imports, until `undo()`."""
        import torch.distributed as dist

        patch = pytest.MonkeyPatch()
        vllm_modules(patch, None, dist.group.WORLD if dist.is_initialized() else None)
        return patch

    def __init__(self, problem: Problem, group: Any, weights: ExpertWeights) -> None:
        kind = FP8 if problem.recipe == "fp8xfp8" else MXFP4
        self.experts = routed_experts()
        self.method = ExpertsMethod(vllm_method(kind), self.experts, moe_config(problem, device=weights.fc1.device))
        for field, name in self.method.names.items():
            self.experts.register_parameter(name, torch.nn.Parameter(getattr(weights, field).clone(), requires_grad=False))
        self.method.process_weights_after_loading(self.experts)

    @property
    def moe(self) -> vllm.MegaMoE:
        return LAYERS[self.experts]

    def reload(self, weights: ExpertWeights) -> None:
        """A weight update: into the parameters, then the hook that follows a load."""
        for field, name in self.method.names.items():
            getattr(self.experts, name).data.copy_(getattr(weights, field))
        self.method.process_weights_after_loading(self.experts)

    def forward(self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        return self.method.apply(self.experts, hidden, topk_weights, topk_ids, None, None)

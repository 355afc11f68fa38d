"""The plug-in within vLLM's own modules (`make engines`): loaded as vLLM loads it, in vLLM's layer of experts, whose weights vLLM's loader
writes and its balancing moves.  Kernels run on a Hopper GPU, on a simulated one where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from record import Record
from sources import Sources
from stubs import importable
from wheel import WHEELS

from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat.engines import vllm
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.layer import MegaMoE
from sglang_experts import DEVICE, captured, on_a_gpu, random_routing

pytestmark = pytest.mark.engines
MOE, QUANTIZATION = "vllm.model_executor.layers.fused_moe", "vllm.model_executor.layers.quantization"
WHEEL = WHEELS["vllm"]
PROBLEM = Problem(256, 256, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8", activation_clamp=10.0)


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """vLLM after its start, with the plug-in and one GPU; what its own kernels need is not there."""
    kernels: Path = tmp_path_factory.mktemp("kernels")
    with importable(WHEEL), pytest.MonkeyPatch.context() as patch, on_a_gpu(patch, kernels):
        patch.setenv(vllm.VARIABLE, "1")
        patch.setattr(import_module("vllm.platforms"), "builtin_platform_plugins", {})
        plugins: Any = import_module("vllm.plugins")
        entry = EntryPoint("megamoe_dsl", "megamoe_dsl.compat.engines.vllm:register", plugins.DEFAULT_PLUGINS_GROUP)
        patch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == entry.group else [])
        plugins.load_general_plugins()
        settings = SimpleNamespace(parallel_config=SimpleNamespace(enable_dbo=False))
        patch.setattr(import_module("vllm.config"), "get_current_vllm_config", lambda: settings)
        group = SimpleNamespace(world_size=1, rank_in_group=0)
        patch.setattr(import_module("vllm.distributed.parallel_state"), "get_tp_group", lambda: group)
        for module, name in (("mxfp4", "select_deepseek_v4_mxfp4_moe_backend"), ("fp8", "select_fp8_moe_backend")):
            patch.setattr(import_module(f"{QUANTIZATION}.{module}"), name, lambda *_, **__: (None, None))
        yield patch


def test_the_wheel_is_the_record() -> None:
    assert Record.take(WHEEL) == Record.load("vllm")
    assert Sources(WHEEL.sources).signature(f"{MOE}.routed_experts.RoutedExperts.gone") is None


CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fp8": (f"{QUANTIZATION}.fp8", "Fp8Config", {"is_checkpoint_fp8_serialized": True, "weight_block_size": [128, 128]}),
    "mxfp4": (f"{QUANTIZATION}.mxfp4", "Mxfp4Config", {}),
    "deepseek_v4_fp8": ("vllm.models.deepseek_v4.quant_config", "DeepseekV4FP8Config", {"is_checkpoint_fp8_serialized": True}),
}
"""Module, class and arguments of vLLM's quantization configurations."""


def new_experts(problem: Problem, checkpoint: str, activation: str = "silu") -> Any:
    """vLLM's layer of a checkpoint's experts, with vLLM's quantization configuration."""
    config, parallel = import_module(f"{MOE}.config"), import_module(f"{MOE}.config").FusedMoEParallelConfig.make_no_parallel()
    moe = config.FusedMoEConfig(
        num_experts=problem.num_experts,
        experts_per_token=problem.topk,
        hidden_dim=problem.hidden,
        intermediate_size=problem.intermediate,
        num_local_experts=problem.num_experts,
        num_logical_experts=problem.num_experts,
        activation=import_module(f"{MOE}.activation").MoEActivation.from_str(activation),
        device=DEVICE,
        routing_method=config.RoutingMethodType.TopK,
        moe_parallel_config=parallel,
        in_dtype=torch.bfloat16,
        max_num_tokens=problem.max_tokens_per_rank,
        swiglu_limit=problem.activation_clamp,
    )
    manager = import_module(f"{MOE}.expert_map_manager").ExpertMapManager(
        max_num_batched_tokens=problem.max_tokens_per_rank,
        top_k=problem.topk,
        global_num_experts=problem.num_experts,
        num_redundant_experts=0,
        num_expert_group=None,
        moe_parallel_config=parallel,
        placement_strategy="linear",
        enable_eplb=False,
        num_fused_shared_experts=0,
        rocm_aiter_enabled=False,
    )
    module, name, options = CONFIGS[checkpoint]
    quantization = getattr(import_module(module), name)(**options)
    layer = import_module(f"{MOE}.routed_experts").RoutedExperts
    return layer("model.layers.0.mlp.experts", torch.bfloat16, moe, quantization, expert_map_manager=manager)


def load(experts: Any, weights: ExpertWeights) -> None:
    """A checkpoint's tensors, one by one, through vLLM's loader, and its hook after them."""
    for field, name in experts.quant_method.names.items():
        parameter = getattr(experts, name)
        for expert, tensor in enumerate(getattr(weights, field)):
            half = len(tensor) // 2
            shards = {"w1": tensor[:half], "w3": tensor[half:]} if field.startswith("fc1") else {"w2": tensor}
            for shard, rows in shards.items():
                parameter.weight_loader(parameter, rows.clone(), f"{experts.layer_name}.{name}", shard, expert)
    experts.quant_method.process_weights_after_loading(experts)


@pytest.mark.parametrize("checkpoint", CONFIGS)
def test_a_layer_of_vllm_computes_with_it(checkpoint: str) -> None:
    """A load, an idle step, a move of experts, a weight update: the bits of `MegaMoE`, on a GPU in one CUDA graph."""
    problem = Problem(**{**vars(PROBLEM), "recipe": "fp8xfp8" if checkpoint == "fp8" else "fp8xmxfp4"})
    weights = [random_weights(problem, 0, seed, DEVICE) for seed in (1, 2)]
    experts = new_experts(problem, checkpoint).to(DEVICE)
    assert type(experts) is vllm.experts_type() and type(experts.quant_method) is vllm.method_type()
    load(experts, weights[0])
    moe = vllm.LAYERS[experts]
    assert moe.problem == problem
    other = MegaMoE(problem, weights[0], symmetric=moe.symmetric)
    x, idx, topk_weights = random_routing(problem, 3, DEVICE)
    routing = idx.long()
    want = other(x, idx, topk_weights).clone()
    step = captured(lambda: experts.forward_modular(x, topk_weights, routing))
    assert torch.equal(step(), want) and want.any()
    assert experts.forward_modular(x[:0], topk_weights[:0], routing[:0]).shape == (0, problem.hidden)
    rebalance(list(experts.get_expert_weights()), [0, 1, 2, 3], [2, 3, 1, 0])
    routing.copy_(torch.tensor([2, 3, 1, 0], device=DEVICE).argsort()[idx.long()])
    assert torch.equal(step(), want)
    load(experts, weights[1])
    other.load_weights(weights[1])
    routing.copy_(idx)
    assert torch.equal(step(), other(x, idx, topk_weights))


def rebalance(weights: list[torch.Tensor], before: list[int], after: list[int]) -> None:
    """As vLLM's EPLB on one rank."""
    execute: Any = import_module("vllm.distributed.eplb.rebalance_execute")
    buffers = [torch.empty_like(one) for one in weights]
    communicator = SimpleNamespace(set_transfer_context=lambda *_: None, execute=lambda: None)
    moved = execute.move_to_buffer(len(before), np.array(before), np.array(after), weights, buffers, None, 0, communicator)
    execute.move_from_buffer(weights, buffers, moved, np.array(after), 0)


def test_vllm_neither_gathers_tokens_nor_adds_results_up() -> None:
    runner: Any = import_module(f"{MOE}.runner.moe_runner").MoERunner
    parallel = SimpleNamespace(dp_size=2, is_sequence_parallel=False)
    layer = SimpleNamespace(_quant_method=new_experts(PROBLEM, "fp8").quant_method, moe_config=parallel)
    assert runner._fused_output_is_reduced.fget(layer) and not runner.do_naive_dispatch_combine.fget(layer)


def test_vllm_computes_what_no_kernel_takes() -> None:
    method = new_experts(Problem(**{**vars(PROBLEM), "activation_clamp": None}), "fp8", "gelu").quant_method
    assert type(method).__name__ == "Fp8MoEMethod"

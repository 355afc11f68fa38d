"""The plug-in within SGLang's own modules (`make engines`): loaded as SGLang loads it, called by its models, its experts moved by its
balancing.  Kernels run on a simulated Hopper GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from record import Record
from sources import Sources
from stubs import importable
from wheel import WHEELS

from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat.engines import sglang
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime.layer import MegaMoE
from sglang_experts import DEVICE, as_loaded, captured, on_a_gpu, random_routing, sglang_experts

pytestmark = pytest.mark.engines
PROBLEM = Problem(256, 256, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8", activation_clamp=10.0)
MEGA, MOE_UTILS = "sglang.srt.layers.moe.mega_moe", "sglang.srt.layers.moe.utils"
WHEEL = WHEELS["sglang"]


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SGLang after its start, with the plug-in, `--moe-a2a-backend megamoe` and one GPU."""
    kernels: Path = tmp_path_factory.mktemp("kernels")
    with importable(WHEEL), pytest.MonkeyPatch.context() as patch, on_a_gpu(patch, kernels):
        patch.setenv(sglang.VARIABLE, "1")
        patch.setenv("SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK", "8")
        plugins: Any = import_module("sglang.srt.plugins")
        entry = EntryPoint("megamoe_dsl", "megamoe_dsl.compat.engines.sglang:register", plugins.GENERAL_PLUGINS_GROUP)
        patch.setattr(plugins, "entry_points", lambda group: [entry] if group == entry.group else [])
        plugins.load_plugins()
        context: Any = import_module("sglang.srt.runtime_context")
        patch.setattr(context, "get_server_args", lambda: SimpleNamespace(watchdog_timeout=300.0))
        patch.setattr(context.get_flags().moe, "a2a_backend", import_module(MOE_UTILS).MoeA2ABackend.MEGAMOE)
        dp: Any = import_module("sglang.srt.layers.dp_attention")
        patch.setattr(dp._DpGatheredBufferWrapper, "_global_num_tokens", [3], raising=False)
        yield


def test_the_wheel_is_the_record() -> None:
    assert Record.take(WHEEL) == Record.load("sglang")
    assert Sources(WHEEL.sources).signature(f"{MEGA}.gone") is None


def test_every_hook_is_applied() -> None:
    registry: Any = import_module("sglang.srt.plugins.hook_registry").HookRegistry
    assert registry._patched == {*sglang.HOOKS, *sglang.AROUND}


def loaded(problem: Problem, seed: int, **names: Any) -> Any:
    """Experts that SGLang's own quantization method has loaded."""
    fp8: Any = import_module("sglang.srt.layers.quantization.fp8").Fp8MoEMethod
    experts = sglang_experts(problem, random_weights(problem, 0, seed, DEVICE), **names)
    method = SimpleNamespace(is_fp4_expert=problem.recipe != "fp8xfp8", dequant_fp4_to_fp8=False)
    if method.is_fp4_expert:
        fp8.process_weights_after_loading_block_quant(method, experts)
    else:
        import_module("sglang.srt.layers.moe.mega_moe_sm90").build_sm90_mega_moe_experts_weights(experts)
    return experts


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4"])
def test_a_model_of_sglang_computes_with_it(recipe: str) -> None:
    """Qwen3's block: BF16 tokens, its router, an idle step, an EPLB move, a weight update; the bits of `MegaMoE`, on a GPU in one CUDA
    graph."""
    problem = Problem(**{**vars(PROBLEM), "recipe": recipe, "activation_clamp": None})
    experts = loaded(problem, 1)
    x, idx, weights = random_routing(problem, 3, DEVICE)
    block: Any = import_module("sglang.srt.models.qwen3_moe").Qwen3MoeSparseMoeBlock
    standard: Any = import_module("sglang.srt.layers.moe.topk").StandardTopKOutput
    routing = idx.clone()
    model = SimpleNamespace(
        experts=experts,
        gate=lambda hidden: (hidden, None),
        topk=lambda hidden, logits: standard(topk_weights=weights, topk_ids=routing, router_logits=logits),
        _mega_hidden_size=problem.hidden,
        _mega_intermediate_size=problem.intermediate,
        _mega_top_k=problem.topk,
    )
    moe = sglang.LAYERS[experts]
    other = MegaMoE(moe.problem, random_weights(problem, 0, 1, DEVICE), symmetric=moe.symmetric, bounds=(8,))
    want = other(x, idx, weights, num_tokens_bound=8).clone()
    step = captured(lambda: block._forward_mega_moe(model, x, None))
    assert torch.equal(step(), want) and want.any()
    assert block._forward_mega_moe(model, x[:0], None).shape == (0, problem.hidden)
    routing.copy_(torch.tensor([2, 3, 1, 0], device=DEVICE).argsort()[idx.long()])
    rebalance(experts, [0, 1, 2, 3], [2, 3, 1, 0])
    assert torch.equal(step(), want)
    routing.copy_(idx)
    new = random_weights(problem, 0, 2, DEVICE)
    for field, name in sglang.FP8_NAMES.items():
        getattr(experts, name).data.copy_(as_loaded(problem, field, getattr(new, field)))
    sglang.build(experts, sglang.FP8_NAMES)
    other.load_weights(new)
    assert torch.equal(step(), other(x, idx, weights, num_tokens_bound=8))


def rebalance(experts: torch.nn.Module, before: list[int], after: list[int]) -> None:
    """As SGLang's EPLB: the parameters that it finds, moved by its own function."""
    updater: Any = import_module("sglang.srt.eplb.expert_location_updater")
    chosen: Any = import_module(MOE_UTILS).filter_moe_weight_param_global_expert
    tensors = [one.data for name, one in experts.named_parameters() if chosen(name, one, len(before))]
    assert len(tensors) == 4
    updater.update_expert_weights_single_layer(
        routed_experts_weights=tensors,
        temp_buffers=updater.create_temp_buffers(tensors),
        old_physical_to_logical_map=before,
        new_physical_to_logical_map=after,
        num_local_physical_experts=len(before),
        num_gpu_per_node=1,
        rank=0,
        world_size=1,
    )


def test_deepseeks_path_with_shared_experts() -> None:
    mega: Any = import_module(MEGA)
    experts = loaded(PROBLEM, 1)
    x, idx, weights = random_routing(PROBLEM, 3, DEVICE)
    model = SimpleNamespace(
        experts=experts,
        alt_stream=None,
        mega_shared_l1_weights=None,
        mega_shared_l2_weights=None,
        num_fused_shared_experts=0,
        n_shared_experts=1,
        is_hash=False,
        routed_scaling_factor=2.0,
        routed_scaling_factor_fused_in_topk=False,
        config=SimpleNamespace(hidden_size=256, moe_intermediate_size=256, num_experts_per_tok=2),
        gate=lambda hidden, forward_batch: hidden,
        topk=lambda hidden, logits: SimpleNamespace(topk_ids=idx, topk_weights=weights),
        _forward_shared_experts=lambda hidden: torch.ones_like(hidden),
    )
    experts.moe_runner_config.swiglu_limit = 10.0
    assert mega.should_use_mega_moe(model, x) and not mega.should_fuse_mega_moe_shared_experts(model)
    moe = sglang.LAYERS[experts]
    want = moe(x, idx, weights * 2, num_tokens_bound=8) + 1
    assert torch.equal(captured(lambda: mega.forward_mega_moe(model, x))(), want)


def test_nvfp4_is_refused() -> None:
    quantization: Any = import_module("sglang.srt.layers.quantization.modelopt_quant").ModelOptNvFp4FusedMoEMethod
    with pytest.raises(ProblemError, match="quantization = 'NVFP4'"):
        quantization._build_mega_moe_weights(None, None)

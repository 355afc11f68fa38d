"""SGLang's plug-in: its hooks, the weights that SGLang moves and loads, and its calls on a simulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_stand_in import arguments_of
from record import Record

import megamoe_dsl.compat.engines.sglang as sglang
from megamoe_dsl.arch import SM90, SM100, Arch
from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat.engines import shared_parts
from megamoe_dsl.compat.engines.shared_parts import adopt, exact_ue8m0
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, new_weights
from megamoe_dsl.runtime import symmetric_memory
from megamoe_dsl.runtime.buffers import RankBuffers
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.target import Target
from sglang_experts import (
    Field,
    HookRegistry,
    HookType,
    SglangLayer,
    as_loaded,
    move_experts,
    on_a_simulated_gpu,
    random_routing,
    sglang_experts,
    sglang_modules,
)
from simulated_gpu import SimulatedKernel
from sweep import rarely

PROBLEM = Problem(256, 256, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8", activation_clamp=10.0)
PACKED = replace(PROBLEM, recipe="fp8xmxfp4")


@pytest.fixture
def arch(monkeypatch: pytest.MonkeyPatch) -> Arch:
    """SGLang's modules, with a Hopper GPU."""
    sglang_modules(monkeypatch, PROBLEM.max_tokens_per_rank, [])
    monkeypatch.setattr(symmetric_memory, "device_arch", lambda device: SM90)
    return SM90


def test_hooks_take_the_engines_arguments() -> None:
    names = Record.load("sglang").names
    for target, hook in sglang.HOOKS.items():
        assert arguments_of(hook) == names[target], target
    for target, hook in sglang.AROUND.items():
        assert arguments_of(hook) == f"original, {names[target]}", target


def test_the_plug_in_waits_to_be_asked(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HookRegistry, "hooks", {})
    monkeypatch.delenv(sglang.VARIABLE, raising=False)
    sglang.register()
    assert not HookRegistry.hooks
    monkeypatch.setenv(sglang.VARIABLE, "1")
    sglang.register()
    found = {target: hook for target, (hook, kind) in HookRegistry.hooks.items() if kind is HookType.REPLACE}
    assert found == sglang.HOOKS and HookRegistry.hooks.keys() == {*sglang.HOOKS, *sglang.AROUND}


SM100_PROBLEM = Problem(256, 128, 2, 2, recipe="fp8xfp4")


@pytest.mark.parametrize(
    ("problem", "arch"),
    [(PROBLEM, SM90), (PACKED, SM90), (SM100_PROBLEM, SM100), rarely(replace(SM100_PROBLEM, recipe="mxf4xmxf4"), SM100)],
    ids=lambda one: getattr(one, "recipe", getattr(one, "name", None)),
)
def test_parameters_are_what_the_kernel_reads(problem: Problem, arch: Arch) -> None:
    """SGLang moves experts, and loads new ones, by the parameters that it knows."""
    target = Target(arch, 4, "simulated")
    buffers = RankBuffers(find_kernel("mega_moe").choose(problem, target, 8), new_weights(problem, arch, "cpu"))
    layer: Any = SimpleNamespace(problem=problem, memory=buffers, load_expert=buffers.load_expert)
    weights = [random_weights(problem, 0, seed) for seed in (1, 2)]
    experts = sglang_experts(problem, weights[0])
    parameters = {field: getattr(experts, name) for field, name in sglang.FP8_NAMES.items()}
    shapes = {field: one.shape for field, one in parameters.items()}
    adopt(layer, parameters)
    assert {field: one.shape for field, one in parameters.items()} == shapes
    same(buffers.checkpoint_weights(), weights[0])
    order = list(reversed(range(problem.num_experts)))
    move_experts(experts, order)
    same(buffers.checkpoint_weights(), weights[0].map(lambda tensor: tensor[order]))
    for field, parameter in parameters.items():
        parameter.data.copy_(as_loaded(problem, field, getattr(weights[1], field)))
    adopt(layer, parameters)
    same(buffers.checkpoint_weights(), weights[1])


def same(found: ExpertWeights, want: ExpertWeights) -> None:
    for name, tensor in vars(want).items():
        assert tensor is None or torch.equal(getattr(found, name).view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("recipe", [PROBLEM.recipe, PACKED.recipe])
def test_padded_weights_can_be_moved(recipe: str) -> None:
    """Where the kernel has more bytes than the checkpoint, experts are outermost all the same."""
    problem = replace(PROBLEM, hidden=288, recipe=recipe)
    buffers = RankBuffers(find_kernel("mega_moe").choose(problem, Target(SM90, 4, "simulated"), 8), new_weights(problem, SM90, "cpu"))
    weights, layer = random_weights(problem, 0, 1), SimpleNamespace(problem=problem, memory=buffers, load_expert=buffers.load_expert)
    experts = sglang_experts(problem, weights)
    adopt(layer, {field: getattr(experts, name) for field, name in sglang.FP8_NAMES.items()})  # type: ignore[arg-type]
    move_experts(experts, [3, 2, 1, 0])
    same(buffers.checkpoint_weights(), weights.map(lambda tensor: tensor.flip(0)))


def test_scales_of_fp4_are_not_rounded() -> None:
    assert exact_ue8m0("fc1_sf", torch.tensor([0.25, 2.0])).tolist() == [125, 128]
    with pytest.raises(ProblemError, match=r"fc1_sf = 3.0: must be powers of two"):
        exact_ue8m0("fc1_sf", torch.tensor([0.25, 3.0]))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[SimulatedKernel]]:
    """One Hopper GPU under SGLang, whose layers' kernels see the tensors of a call."""
    with pytest.MonkeyPatch.context() as patch, on_a_simulated_gpu(patch, tmp_path_factory.mktemp("kernels")) as gpu:
        sglang_modules(patch, PROBLEM.max_tokens_per_rank, [3, 8])
        yield gpu


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("problem", [PACKED, rarely(PROBLEM)], ids=lambda one: one.recipe)
def test_calls_have_the_bits_of_the_layer(problem: Problem, gpu: type[SimulatedKernel], capfd: pytest.CaptureFixture[str]) -> None:
    """After a load, in an idle step, after a move of experts and a weight update."""
    weights = [random_weights(problem, 0, seed) for seed in (1, 2)]
    layer = SglangLayer(problem, None, weights[0])
    assert sglang.is_mega_moe_experts_ready(layer.experts) and layer.experts._mega_moe_weights_built
    assert capfd.readouterr().err.count("compiled ") >= 2
    moe = sglang.LAYERS[layer.experts]
    other = MegaMoE(moe.problem, weights[0], symmetric=moe.symmetric, bounds=(8,))
    assert moe.kernels[8].kernels[0].arguments.values.watchdog_ns == 300 * 10**9 and moe.problem.recipe == problem.recipe
    given = random_routing(problem, 3)
    want = other(*given, num_tokens_bound=8)
    assert torch.equal(layer.forward(*given), want) and want.any()
    assert layer.forward(*random_routing(problem, 0)).shape == (0, problem.hidden)
    order = [2, 0, 3, 1]
    move_experts(layer.experts, order)
    places = torch.tensor(order).argsort()
    assert torch.equal(layer.forward(given[0], places[given[1].long()].int(), given[2]), want)
    layer.reload(weights[1])
    other.load_weights(weights[1])
    assert torch.equal(layer.forward(*given), other(*given, num_tokens_bound=8))


def test_what_was_not_loaded_for_is_refused(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = torch.nn.Module()
    assert not sglang.is_mega_moe_experts_ready(experts) and not sglang.should_use_mega_moe(
        SimpleNamespace(experts=experts), torch.zeros(1)
    )
    monkeypatch.setitem(sglang.LAYERS, experts, SimpleNamespace(problem=PROBLEM))
    assert sglang.is_mega_moe_experts_ready(experts)
    options: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "top_k": 2, "num_tokens": 3}
    run = partial(sglang.run_mega_routed_experts, experts, *random_routing(PROBLEM, 3))
    for name, value in {
        "hidden_size": 512,
        "intermediate_size": 128,
        "activation": "situ",
        "activation_clamp": 7.0,
        "top_k": 4,
        "num_shared_experts": 1,
        "routing_in_buffer": True,
    }.items():
        with pytest.raises(ProblemError, match=rf"{name} = .* as when the weights were loaded"):
            run(**{**options, name: value})
    with pytest.raises(ProblemError, match=r"num_tokens = 9: must be at most SGLANG_OPT_\w+ = 8"):
        run(**{**options, "num_tokens": 9})


@dataclass
class CalledLayer:
    """In a layer's place: what it was called with."""

    problem: Problem = PROBLEM

    def __call__(self, *given: torch.Tensor, **options: Any) -> tuple[Any, ...]:
        return given, options


def test_weights_are_scaled_and_the_bound_is_within_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, (x, idx, weights) = torch.nn.Module(), random_routing(PROBLEM, 3)
    monkeypatch.setitem(sglang.LAYERS, experts, CalledLayer())
    options: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "top_k": 2, "num_tokens": 8, "routed_scaling_factor": 2.5}
    for most, bound in ((5, 5), (99, PROBLEM.max_tokens_per_rank)):
        monkeypatch.setattr(sglang, "num_tokens_bound", lambda tokens, most=most: most)
        given, found = sglang.run_mega_routed_experts(experts, x, idx, weights, **options)
        assert given[0] is x and given[1] is idx and torch.equal(given[2], weights * 2.5) and found == {"num_tokens_bound": bound}


def test_inputs_are_taken_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strided, with weights of another dtype, and none at all of an idle rank."""
    experts, parts = torch.nn.Module(), random_routing(PROBLEM, 3)
    monkeypatch.setitem(sglang.LAYERS, experts, CalledLayer())
    monkeypatch.setattr(sglang, "num_tokens_bound", lambda tokens: 5)
    options: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "top_k": 2}
    wanted = (*parts[:2], parts[2].bfloat16().float())
    for strided in ([one.T.contiguous().T for one in parts], [one.repeat_interleave(2, dim=1)[:, ::2] for one in parts]):
        given, _ = sglang.run_mega_routed_experts(experts, *strided[:2], strided[2].bfloat16(), **options, num_tokens=3)
        for one, want in zip(given, wanted, strict=True):
            assert one.is_contiguous() and one.dtype == want.dtype and torch.equal(one, want)
    for routing in ((None, None), (parts[1][:0], None)):
        given, _ = sglang.run_mega_routed_experts(experts, parts[0][:0], *routing, **options, num_tokens=0)
        assert [(one.dtype, tuple(one.shape)) for one in given[1:]] == [(torch.int32, (0, 2)), (torch.float32, (0, 2))]


@pytest.mark.parametrize(("fused", "factor", "want"), [(False, 2.5, 2.5), (True, 2.5, 1.0), (False, None, 1.0)])
def test_kimi_scales_unless_its_router_does(fused: bool, factor: float | None, want: float, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = torch.nn.Module()
    experts.should_fuse_routed_scaling_factor_in_topk = fused
    problem = Problem(512, 128, 4, 2, max_tokens_per_rank=8, recipe="fp8xmxfp4", activation="situ")
    monkeypatch.setitem(sglang.LAYERS, experts, CalledLayer(problem))
    monkeypatch.setattr(sglang, "num_tokens_bound", lambda tokens: tokens)
    x, idx, weights = random_routing(problem, 3)
    fields = {"moe_hidden_size": 512, "_mega_intermediate_size": 128, "_mega_top_k": 2, "routed_scaling_factor": factor}
    kimi: Any = SimpleNamespace(experts=experts, **fields)
    given, found = sglang.run_kimi(kimi, x, SimpleNamespace(topk_ids=idx, topk_weights=weights))
    assert given[0] is x and given[1] is idx and torch.equal(given[2], weights * want) and found == {"num_tokens_bound": 3}
    assert sglang.should_use_mega_moe(kimi, x) and not sglang.should_use_mega_moe(SimpleNamespace(experts=torch.nn.Module()), x)
    assert not sglang.should_use_mega_gate(kimi, x, None) and not sglang.should_fuse_mega_moe_shared_experts(kimi)


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4"])
def test_every_field_of_a_layer_is_its_own(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two numbers of this one are the same."""
    problem = Problem(512, 256, 6, 3, 2, 16, recipe=recipe, activation_clamp=7.0)
    sglang_modules(monkeypatch, problem.max_tokens_per_rank, [])
    monkeypatch.setattr(symmetric_memory, "device_arch", lambda device: SM90)
    for limits in ({}, {"swiglu_limit": None, "gemm1_clamp_limit": 7.0}):
        experts = sglang_experts(problem, random_weights(problem, 0, 1), **limits)
        assert sglang.problem_of(experts, {field: getattr(experts, name) for field, name in sglang.FP8_NAMES.items()}) == problem


ACCEPTED: dict[str, tuple[dict[str, object], tuple[str, float | None]]] = {
    "swiglu": ({"swiglu_limit": 10.0}, ("silu", 10.0)),
    "swigluoai": ({"gemm1_alpha": 1.702, "gemm1_beta": 1.0, "gemm1_clamp_limit": 5.0, "gate_up_interleaved": False}, ("swigluoai", 5.0)),
    "situ": ({"activation": "situ", "gemm1_alpha": 4.0, "gemm1_clamp_limit": 25.0}, ("situ", None)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_activations(name: str, arch: Arch) -> None:
    config, want = ACCEPTED[name]
    experts = sglang_experts(PACKED, random_weights(PACKED, 0, 1), **{"swiglu_limit": None, **config})
    problem = sglang.problem_of(experts, {field: getattr(experts, at) for field, at in sglang.FP8_NAMES.items()})
    assert (problem.activation, problem.activation_clamp, problem.recipe) == (*want, "fp8xmxfp4")


@pytest.mark.parametrize(
    ("message", "attributes", "config"),
    [
        ("activation = 'gelu'", {}, {"activation": "gelu"}),
        ("constants of situ", {}, {"activation": "situ", "gemm1_alpha": 5.0, "gemm1_clamp_limit": 25.0}),
        ("constants of swigluoai", {}, {"gemm1_alpha": 1.5, "gemm1_beta": 1.0, "gate_up_interleaved": False}),
        ("gate_up_interleaved", {}, {"gemm1_alpha": 1.702, "gemm1_beta": 1.0}),
        ("is_gated = False: must be True with MEGAMOE_SGLANG=1", {}, {"is_gated": False}),
        ("moe_tp_size = 2: must be 1", {"moe_tp_size": 2}, {}),
        ("with_bias = True: must be False", {"with_bias": True}, {}),
        ("apply_router_weight_on_input = True: must be False", {}, {"apply_router_weight_on_input": True}),
        ("activation = 'gelu'", {"_minimax_activation": "gelu"}, {}),
        ("experts = 'mxf4xmxf4'.*on sm_90a", {"_mega_moe_w4a4": True}, {}),
    ],
)
def test_what_no_kernel_computes_is_refused(message: str, attributes: dict[str, Any], config: dict[str, object], arch: Arch) -> None:
    experts = sglang_experts(PACKED, random_weights(PACKED, 0, 1), **config)
    vars(experts).update(attributes)
    with pytest.raises(ProblemError, match=message):
        sglang.build(experts, sglang.FP8_NAMES)
    assert not experts._mega_moe_weights_built and experts not in sglang.LAYERS


def test_a_load_into_the_same_parameters_keeps_the_layer(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs hold its addresses."""
    made, adopted = [], []
    monkeypatch.setattr(sglang, "layer_of", lambda problem, device: made.append((problem, device)) or object())
    monkeypatch.setattr(shared_parts, "adopt", lambda layer, parameters: adopted.append((layer, sorted(parameters))))
    experts = sglang_experts(PROBLEM, random_weights(PROBLEM, 0, 1))
    for _ in range(2):
        sglang.build(experts, sglang.FP8_NAMES)
    assert made == [(PROBLEM, torch.device("cpu"))] and adopted == [(sglang.LAYERS[experts], ["fc1", "fc1_sf", "fc2", "fc2_sf"])] * 2
    assert experts._mega_moe_weights_built


def test_results_travel_as_a_variable_says(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = sglang_experts(PACKED, random_weights(PACKED, 0, 1))
    parameters = {field: getattr(experts, at) for field, at in sglang.FP8_NAMES.items()}
    assert sglang.problem_of(experts, parameters).combine == "bf16"
    monkeypatch.setenv("MEGAMOE_COMBINE", "e4m3")
    assert sglang.problem_of(experts, parameters).combine == "e4m3"


def test_formats_of_blackwell() -> None:
    found = [sglang.recipe_of(SM100, True, w4a4) for w4a4 in (False, True)]
    assert found == ["fp8xfp4", "mxf4xmxf4"]
    with pytest.raises(ProblemError, match=r"experts = 'fp8xfp8'.*on sm_100a"):
        sglang.recipe_of(SM100, False, False)


def test_who_loads_what(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(sglang, "build", lambda experts, names: calls.append(names))
    original = lambda self, layer: calls.append("SGLang")  # noqa: E731
    for fp4, dequantized in ((True, False), (False, False), (True, True)):
        sglang.load_fp8(original, SimpleNamespace(is_fp4_expert=fp4, dequant_fp4_to_fp8=dequantized), None)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["sglang.srt.layers.moe.utils"], "get_moe_a2a_backend", lambda: SimpleNamespace(is_megamoe=lambda: False))
        sglang.load_fp8(original, SimpleNamespace(is_fp4_expert=True, dequant_fp4_to_fp8=False), None)  # type: ignore[arg-type]
    for mega in (True, False):
        sglang.load_mxfp4(original, SimpleNamespace(use_mega_moe=mega), None)  # type: ignore[arg-type]
    sglang.load_minimax_nvfp4(original, SimpleNamespace(use_marlin=True), None)  # type: ignore[arg-type]
    assert calls == [sglang.FP8_NAMES, "SGLang", "SGLang", "SGLang", sglang.MXFP4_NAMES, "SGLang", "SGLang"]
    with pytest.raises(ProblemError, match="quantization = 'NVFP4'"):
        sglang.load_minimax_nvfp4(original, SimpleNamespace(use_marlin=False), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "want"), [(Field(2), 0), (Field(4, given=True), 4), (Field(-1, given=True), 0)])
def test_reserved_sms_are_sglangs(given: Field, want: int, arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    sglang_modules(monkeypatch, 8, [], "group", reserved=given)
    monkeypatch.setattr(shared_parts, "gpu_target", lambda device: Target(SM90, 132, "simulated"))
    monkeypatch.setattr(shared_parts, "symmetric_of", lambda problem, group: group)
    monkeypatch.setattr(shared_parts, "prepared_bounds", lambda problem, target: made.update(target=target) or [8])
    monkeypatch.setattr(shared_parts, "MegaMoE", lambda problem, **options: made.update(options))
    for ranks, group in ((1, None), (2, "group")):
        sglang.layer_of(replace(PROBLEM, num_ranks=ranks), torch.device("cpu"))
        assert (made["reserved_sms"], made["target"].num_sms, made["watchdog_ns"]) == (want, 132 - want, 300 * 10**9)
        assert made["symmetric"] == group and made["bounds"] == [8]


def test_bounds_come_from_sglang(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_modules(monkeypatch, 8, [3, 12])
    assert (sglang.num_tokens_bound(5), sglang.num_tokens_bound(20)) == (12, 20)
    sglang_modules(monkeypatch, 8, [])
    assert sglang.num_tokens_bound(0) == 1

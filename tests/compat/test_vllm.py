"""vLLM's plug-in: the layer that it replaces, the weights that vLLM moves and loads, and its calls on a simulated GPU."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_name import METHODS
from engine_stand_in import arguments_of
from record import Record

import megamoe_dsl.compat.engines.vllm as vllm
from engines import Inputs3, call_sequence
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.cases import random_weights
from megamoe_dsl.compat.engines import shared_parts
from megamoe_dsl.compat.engines.vllm import FP8, LAYERS, MXFP4, ExpertsMethod
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, new_weights
from megamoe_dsl.runtime import symmetric_memory
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.target import Target
from sglang_experts import on_a_simulated_gpu, random_routing
from simulated_gpu import SimulatedKernel
from sweep import rarely
from vllm_experts import PluggableLayer, VllmLayer, moe_config, routed_experts, vllm_method, vllm_modules

PROBLEM = Problem(256, 256, 4, 2, max_tokens_per_rank=8, recipe="fp8xfp8", activation_clamp=10.0)
PACKED = replace(PROBLEM, recipe="fp8xmxfp4")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """vLLM's modules, with a Hopper GPU; the registry of replaced layers."""
    monkeypatch.setattr(symmetric_memory, "device_arch", lambda device: SM90)
    vllm.experts_type.cache_clear()
    vllm.method_type.cache_clear()
    return vllm_modules(monkeypatch, None)


def test_what_takes_vllms_place_has_its_arguments() -> None:
    names = Record.load("vllm").names
    for target, function in vllm.HOOKS.items():
        assert arguments_of(function) == names[target], target
    for target in METHODS:
        own, theirs = inspect.getattr_static(ExpertsMethod, target.rpartition(".")[2]), names[target].split(", ")
        given = (
            [str(one) for one in inspect.signature(own).parameters.values() if one.kind == one.POSITIONAL_OR_KEYWORD]
            if callable(own)
            else ["self"]
        )
        assert [one.partition(":")[0] for one in given] == theirs[: len(given)], target


def test_the_plug_in_waits_to_be_asked(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluggableLayer, "registered", [])
    monkeypatch.delenv(vllm.VARIABLE, raising=False)
    vllm.register()
    assert PluggableLayer.registered == []
    monkeypatch.setenv(vllm.VARIABLE, "1")
    vllm.register()
    ((layer, name),) = PluggableLayer.registered
    assert name == "RoutedExperts" == layer.__mro__[1].__name__
    engine[name] = layer
    vllm.register()
    assert len(PluggableLayer.registered) == 1


def test_vllm_computes_what_no_kernel_takes(engine: dict[str, type], caplog: pytest.LogCaptureFixture) -> None:
    """With one warning for each reason."""
    experts = vllm.experts_type()()
    vars(experts).update(vars(routed_experts()), theirs=vllm_method(MXFP4))
    vllm.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "megamoe_dsl"):
        for _ in range(2):
            assert experts._get_quant_method("", None, moe_config(PROBLEM, has_bias=True)) is experts.theirs
    assert [one.getMessage() for one in caplog.records] == [
        "Mxfp4MoEMethod of vLLM computes its experts: has_bias = True: must be False with MEGAMOE_VLLM=1"
    ]
    assert experts.get_expert_weights() == ["theirs"]
    method = experts._get_quant_method("", None, moe_config(PROBLEM))
    assert isinstance(method, ExpertsMethod) and method.theirs is experts.theirs and method.moe_kernel.output_is_reduced()
    assert method.supports_eplb and not method.is_monolithic and not method.moe_kernel.fused_experts.consumes_expert_mask
    assert method.maybe_roundup_sizes(96, 32, torch.bfloat16, None) == (96, 32)


ACCEPTED: dict[str, tuple[dict[str, object], tuple[str, float | None]]] = {
    "silu": ({"swiglu_limit": 10.0}, ("silu", 10.0)),
    "silu with the constants of silu": ({"swiglu_alpha": 1.0, "swiglu_beta": 0.0}, ("silu", None)),
    "swigluoai_uninterleave": ({"swiglu_alpha": 1.702, "swiglu_beta": 1.0, "swiglu_limit": 5.0}, ("swigluoai", 5.0)),
    "situ": ({"activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0}, ("situ", None)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_activations(name: str, engine: dict[str, type]) -> None:
    config, want = ACCEPTED[name]
    moe = moe_config(PROBLEM, **{"swiglu_limit": None, **config}, name=name.split()[0])
    problem = ExpertsMethod(vllm_method(MXFP4), routed_experts(), moe).problem
    assert (problem.activation, problem.activation_clamp, problem.recipe) == (*want, "fp8xmxfp4")


@pytest.mark.parametrize(
    ("message", "config", "experts", "kind"),
    [
        ("activation = 'gelu'", {"name": "gelu"}, {}, MXFP4),
        ("constants of silu", {"swiglu_alpha": 1.5}, {}, MXFP4),
        ("constants of situ", {"name": "situ", "activation_situ_beta": 5.0}, {}, MXFP4),
        ("tensor_parallel_size of experts = 2: must be 1", {"tp_size": 2}, {}, MXFP4),
        ("data_parallel_size without expert parallelism = 2: must be 1", {"dp_size": 2}, {}, MXFP4),
        ("prefill_context_parallel_size = 2: must be 1", {"pcp_size": 2}, {}, MXFP4),
        ("in_dtype = torch.float16: must be torch.bfloat16 with MEGAMOE_VLLM=1", {"in_dtype": torch.float16}, {}, MXFP4),
        ("is_lora_enabled = True: must be False", {"is_lora_enabled": True}, {}, MXFP4),
        ("elastic_ep_max_dp_size = 4: must be None", {"elastic_ep_max_dp_size": 4}, {}, MXFP4),
        ("skip_final_all_reduce = True: must be False", {"skip_final_all_reduce": True}, {}, MXFP4),
        ("num_experts = 4: must be a multiple of num_ranks = 3", {"ep_size": 3, "use_ep": True}, {}, MXFP4),
        ("apply_router_weight_on_input = True: must be False", {}, {"apply_router_weight_on_input": True}, MXFP4),
        (
            "expert_placement_strategy = 'round_robin': must be linear",
            {},
            {"expert_map_manager": SimpleNamespace(placement_strategy="round_robin")},
            MXFP4,
        ),
        ("quantization = 'ModelOptNvFp4FusedMoE': must be block FP8 or MXFP4", {}, {}, "vllm.modelopt.ModelOptNvFp4FusedMoE"),
    ],
)
def test_what_is_refused(message: str, config: dict[str, Any], experts: dict[str, Any], kind: str, engine: dict[str, type]) -> None:
    with pytest.raises(ProblemError, match=message):
        ExpertsMethod(vllm_method(kind), routed_experts(**experts), moe_config(PROBLEM, **{"swiglu_limit": None, **config}))


def test_ranks_are_those_of_expert_parallelism(engine: dict[str, type]) -> None:
    """Data-parallel ranks among them."""
    for config, ranks in (({"use_ep": True, "ep_size": 2, "dp_size": 2}, 2), ({"use_ep": False, "ep_size": 2}, 1)):
        assert ExpertsMethod(vllm_method(MXFP4), routed_experts(), moe_config(PROBLEM, **config)).problem.num_ranks == ranks


def test_balancing_moves_what_an_expert_has(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tiles that hold their scales there are none beside them."""
    problem = replace(PROBLEM, recipe="fp8xmxfp4")
    weights = new_weights(problem, SM90, "cpu")
    assert not weights.fc1_sf.numel()
    experts = torch.nn.Module()
    monkeypatch.setitem(LAYERS, experts, SimpleNamespace(problem=problem, memory=SimpleNamespace(weights=weights)))
    moved = vllm.get_expert_weights(experts)
    assert [one.data_ptr() for one in moved] == [weights.fc1.data_ptr(), weights.fc2.data_ptr()]
    assert {len(one) for one in moved} == {problem.num_experts}


def test_number_formats_by_variables(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens in E2M1 and results in E4M3; on Hopper, which has no W4A4, the first is refused."""
    monkeypatch.setenv("MEGAMOE_COMBINE", "e4m3")
    monkeypatch.setenv(vllm.W4A4, "0")
    make = lambda kind: ExpertsMethod(vllm_method(kind), routed_experts(), moe_config(PROBLEM)).problem  # noqa: E731
    assert (make(FP8).recipe, make(FP8).combine, make(MXFP4).recipe) == ("fp8xfp8", "e4m3", "fp8xmxfp4")
    monkeypatch.setenv(vllm.W4A4, "1")
    with pytest.raises(ProblemError, match=r"experts = 'mxf4xmxf4'.*on sm_90a"):
        make(MXFP4)
    monkeypatch.setattr(symmetric_memory, "device_arch", lambda device: SM100)
    assert (make(MXFP4).recipe, make(MXFP4).combine) == ("mxf4xmxf4", "e4m3")
    monkeypatch.setenv("MEGAMOE_COMBINE", "")
    assert make(MXFP4).combine == "bf16"
    monkeypatch.setenv("MEGAMOE_COMBINE", "int8")
    with pytest.raises(ProblemError, match="combine = 'int8'"):
        make(MXFP4)


def test_two_batches_at_once_are_refused(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_modules(monkeypatch, None, dbo=True)
    with pytest.raises(ProblemError, match="enable_dbo = True"):
        ExpertsMethod(vllm_method(MXFP4), routed_experts(), moe_config(PROBLEM))


def test_scales_of_fp8(engine: dict[str, type]) -> None:
    method = ExpertsMethod(vllm_method(FP8), routed_experts(), moe_config(PROBLEM))
    assert method.problem == PROBLEM and method.names["fc2_sf"] == "w2_weight_scale_inv"
    for block in (None, [1, 128]):
        with pytest.raises(ProblemError, match=r"weight_block_size = .*: must be \(128, 128\)"):
            ExpertsMethod(vllm_method(FP8, weight_block_size=block), routed_experts(), moe_config(PROBLEM))


def test_settings(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    vllm_modules(monkeypatch, None, group="group")
    monkeypatch.setattr(shared_parts, "gpu_target", lambda device: Target(SM90, 132, "simulated"))
    monkeypatch.setattr(shared_parts, "symmetric_of", lambda problem, group: group)
    monkeypatch.setattr(shared_parts, "prepared_bounds", lambda problem, target: made.update(target=target) or [8])
    monkeypatch.setattr(shared_parts, "MegaMoE", lambda problem, **options: made.update(options))
    for ranks, text, reserved in ((1, None, 0), (1, "", 0), (2, "4", 4)):
        monkeypatch.delenv(vllm.RESERVED, raising=False) if text is None else monkeypatch.setenv(vllm.RESERVED, text)
        vllm.layer_of(replace(PROBLEM, num_ranks=ranks), torch.device("cpu"))
        assert (made["reserved_sms"], made["target"].num_sms, made["watchdog_ns"]) == (reserved, 132 - reserved, 300 * 10**9)
        assert made["symmetric"] == (None if ranks == 1 else "group")
    monkeypatch.setenv(vllm.RESERVED, "few")
    with pytest.raises(ProblemError, match="MEGAMOE_RESERVED_SMS = 'few': must be a number of SMs"):
        vllm.reserved_sms()


def test_bounds_come_from_vllm(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    assert (vllm.num_tokens_bound(5), vllm.num_tokens_bound(0)) == (5, 1)
    vllm_modules(monkeypatch, [3, 12])
    assert [str(vllm.num_tokens_bound(tokens)) for tokens in (5, 20)] == ["12", "20"]  # and no tensors


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[SimulatedKernel]]:
    """One Hopper GPU under vLLM, whose layers' kernels see the tensors of a call."""
    with pytest.MonkeyPatch.context() as patch, on_a_simulated_gpu(patch, tmp_path_factory.mktemp("kernels")) as gpu:
        vllm_modules(patch, [3, 8])
        yield gpu


def test_the_bound_of_a_call_is_of_all_ranks_and_within_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Module()

    class Layer:
        problem = PROBLEM

        def __call__(self, *given: torch.Tensor, num_tokens_bound: int) -> Any:
            return *given, num_tokens_bound

    monkeypatch.setitem(LAYERS, layer, Layer())
    x, idx, weights = random_routing(PROBLEM, 3)
    for most, bound in ((3, 5), (99, PROBLEM.max_tokens_per_rank)):
        monkeypatch.setattr(vllm, "num_tokens_bound", lambda rows, most=most: max(most, rows + 2))
        method: Any = SimpleNamespace()
        found: Any = ExpertsMethod.apply(method, layer, x, weights.bfloat16(), idx)
        assert found[0] is x and found[1] is idx and found[3] == bound
        assert found[2].dtype == torch.float32 and torch.equal(found[2], weights.bfloat16().float())


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4"])
def test_every_field_of_a_layer_is_its_own(recipe: str, engine: dict[str, type]) -> None:
    """No two numbers of this one are the same."""
    problem = Problem(512, 256, 6, 3, 2, 16, recipe=recipe, activation_clamp=7.0)
    kind = FP8 if recipe == "fp8xfp8" else MXFP4
    assert ExpertsMethod(vllm_method(kind), routed_experts(), moe_config(problem)).problem == problem
    alone = moe_config(problem, ep_size=2, use_ep=False)
    assert ExpertsMethod(vllm_method(kind), routed_experts(), alone).problem == replace(problem, num_ranks=1)


def test_a_load_into_the_same_parameters_keeps_the_layer(engine: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs hold its addresses."""
    made, adopted = [], []
    monkeypatch.setattr(vllm, "layer_of", lambda problem, device: made.append((problem, device)) or object())
    monkeypatch.setattr(shared_parts, "adopt", lambda layer, parameters: adopted.append((layer, sorted(parameters))))
    method, experts = ExpertsMethod(vllm_method(FP8), routed_experts(), moe_config(PROBLEM)), torch.nn.Module()
    for name in method.names.values():
        experts.register_parameter(name, torch.nn.Parameter(torch.zeros(1)))
    for _ in range(2):
        method.process_weights_after_loading(experts)
    assert made == [(PROBLEM, torch.device("cpu"))] and adopted == [(LAYERS[experts], ["fc1", "fc1_sf", "fc2", "fc2_sf"])] * 2


def test_parameters_are_vllms(engine: dict[str, type]) -> None:
    """Its method makes them; where they are, this project's layer quantizes for itself."""
    made: list[object] = []
    theirs = vllm_method(FP8, create_weights=lambda self, *sizes, **attributes: made.extend((*sizes, attributes)))
    method = ExpertsMethod(theirs, routed_experts(), moe_config(PROBLEM))
    method.create_weights("layer", 4, 256, params_dtype=torch.float8_e4m3fn)
    assert made == ["layer", 4, 256, {"params_dtype": torch.float8_e4m3fn}]
    assert method.get_fused_moe_quant_config(None) == "nothing quantized"


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("problem", [PACKED, rarely(PROBLEM)], ids=lambda one: one.recipe)
def test_calls_have_the_bits_of_the_layer(problem: Problem, gpu: type[SimulatedKernel], capfd: pytest.CaptureFixture[str]) -> None:
    """Warm-up, graphs, padding, a weight update, an idle step; then a move of experts."""
    weights = [random_weights(problem, 0, seed) for seed in (1, 2)]
    engine_layers = [VllmLayer(problem, None, one) for one in weights]
    assert capfd.readouterr().err.count("compiled ") >= 2
    symmetric, kernel = engine_layers[0].moe.symmetric, engine_layers[0].moe.kernels[8].kernels[0]
    assert engine_layers[1].moe.symmetric is symmetric and kernel.arguments.values.watchdog_ns == 300 * 10**9
    others = [MegaMoE(problem, one, symmetric=symmetric) for one in weights]

    def check(index: int, given: Inputs3, y: torch.Tensor) -> None:
        assert torch.equal(y, others[index](*given)) and len(y) == len(given[0])

    def capture(step: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], Callable[[], None]]:
        outputs = step()

        def replay() -> None:
            for target, source in zip(outputs, step(), strict=True):
                target.copy_(source)

        return outputs, replay

    def reload() -> ExpertWeights:
        new = random_weights(problem, 0, 3)
        others[0].load_weights(new)
        return new

    def inputs(tokens: int, seed: int) -> Inputs3:
        return random_routing(problem, tokens)

    call_sequence(engine_layers[:1], lambda size: inputs(size, 0), inputs, check, capture, reload, idle=True)
    order, given = [2, 0, 3, 1], random_routing(problem, 3)
    moved = vllm.get_expert_weights(engine_layers[1].experts)
    assert all(one.is_contiguous() and len(one) == problem.num_experts for one in moved)
    for one in moved:
        one.copy_(one[order].clone())
    places = torch.tensor(order).argsort()
    assert torch.equal(engine_layers[1].forward(given[0], places[given[1].long()].int(), given[2]), others[1](*given))
    assert engine_layers[1].experts in LAYERS

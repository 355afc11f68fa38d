"""Tokens routed and quantized, results summed, and the layer of four launches, in the simulator: the reference to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels import expert_layer
from megamoe_dsl.kernels.expert_layer import ExpertLayer, uneven_tile
from megamoe_dsl.kernels.expert_routing.config import RouteConfig, TokensConfig
from megamoe_dsl.kernels.expert_routing.problem import RoutingProblem, SumProblem
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant import no_scales, quantize_e4m3_f32, quantize_weight_e4m3
from megamoe_dsl.reference.router import router_metadata, weighted_sum
from megamoe_dsl.runtime.cpu_experts import layer_on_cpu
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.simulated import memory_of
from megamoe_dsl.sim import Simulator
from megamoe_dsl.target import Target
from moe_layers.point import LAYERS, find_points
from ptx_of import artifact
from simulated_experts import launches_of, simulate_experts, simulate_launches, simulate_route
from sweep import rarely, sample

LAYER = ExpertLayer(256, 128, 8, 2)
SHAPES = {
    "many experts": (40, 384, 512, 10),
    "two experts": (70, 256, 2, 1),
    "most experts": (9, 128, 1024, 3),
    "more slots than threads": (1100, 128, 3, 1),
}


def weights_of(layer: ExpertLayer, generator: torch.Generator) -> LayerOperands:
    shapes = (2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate)
    drawn = [torch.randn(layer.num_experts, *shape, generator=generator) for shape in shapes]
    if not layer.formats.scaled:
        plain = [(one / 16).bfloat16() for one in drawn]
        return LayerOperands(plain[0], no_scales(plain[0]), plain[1], no_scales(plain[1]))
    made = [quantize_weight_e4m3(one) for one in drawn]
    return LayerOperands(*made[0], *made[1])


def call_of(layer: ExpertLayer, tokens: int) -> ExpertCall:
    """Some slots, and all of one token's, are masked."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, layer.hidden, generator=generator).bfloat16()
    idx = torch.rand(tokens, layer.num_experts, generator=generator).topk(layer.topk, dim=1).indices
    idx[:: max(tokens // 3, 1), -1] = -1
    idx[tokens // 2] = -1
    return ExpertCall(layer, x, idx, torch.rand(tokens, layer.topk, generator=generator), weights_of(layer, generator))


@sample("many experts-4", "most experts-1", "more slots than threads-1")
@pytest.mark.parametrize(("shape", "sorters"), [*((shape, 1) for shape in SHAPES), ("many experts", 4), ("more slots than threads", 3)])
def test_slots_are_sorted_and_tokens_quantized(shape: str, sorters: int) -> None:
    """By one CTA, by some of them, and by fewer than may."""
    tokens, hidden, experts, topk = SHAPES[shape]
    call = call_of(ExpertLayer(hidden, 128, experts, topk), tokens)
    call.topk_idx[1:4, 0] = torch.tensor([experts + 3, -2, 1 << 32])  # no experts: masked
    tensors = call.route_tensors()
    for tensor in tensors[1].values():
        tensor.view(torch.uint8).fill_(0x77)
    config = RouteConfig(call.layer.routing, 5, sorters, 100)
    assert not simulate_route(artifact(config), call).findings
    idx = call.topk_idx.where((call.topk_idx >= 0) & (call.topk_idx < experts), -1)
    expected, (x_q, x_sf) = router_metadata(idx, experts), quantize_e4m3_f32(call.x.float())
    rows = len(expected.sources)
    assert torch.equal(call.ends, expected.ends) and torch.equal(call.positions, expected.positions)
    assert torch.equal(call.sources[:rows], expected.sources) and (call.sources[rows:] == 0x77777777).all()
    assert torch.equal(call.x_q.view(torch.uint8), x_q.view(torch.uint8)) and torch.equal(call.x_sf, x_sf)


@pytest.mark.sweep
def test_many_tokens_have_two_ctas_that_sort() -> None:
    """With as many slots for each as the kernel has by itself: the second one's rows of an expert come after the first one's."""
    call = call_of(ExpertLayer(128, 128, 4, 2), 2100)
    config = RouteConfig(call.layer.routing, 4, sorters=2)
    assert config.slots_per_sorter < call.topk_idx.numel()
    assert not simulate_route(artifact(config), call, race=False).findings
    expected = router_metadata(call.topk_idx, 4)
    assert torch.equal(call.ends, expected.ends) and torch.equal(call.positions, expected.positions)
    assert torch.equal(call.sources[: len(expected.sources)], expected.sources)


def test_rows_are_summed_in_order() -> None:
    call = call_of(ExpertLayer(384, 128, 64, 5), 30)
    metadata = router_metadata(call.topk_idx, 64)
    call.positions.copy_(metadata.positions)
    call.topk_weights.masked_fill_(metadata.positions < 0, torch.nan)
    tensors = call.sum_tensors()
    rows = tensors[0]["rows"]
    rows.copy_(torch.randn(rows.shape))
    config = TokensConfig(SumProblem(call.layer.hidden, call.layer.topk), 2)
    assert not simulate_launches(artifact(config), memory_of(*tensors), call.arguments(tensors)).findings
    assert torch.equal(call.y, weighted_sum(rows, metadata.positions, call.topk_weights))


@pytest.mark.parametrize("tokens", [5, rarely(200)])
def test_a_layer_of_four_launches_is_exact(tokens: int) -> None:
    """Few tokens, and so many that both linears have tiles of 128 rows, in pairs."""
    call = call_of(LAYER if tokens < 100 else replace(LAYER, num_experts=2, topk=1), tokens)
    configs = call.layer.configs(Target.typical("sm_90a", 4), tokens)
    assert (configs.fc1.cluster, configs.fc2.cluster) == ((1, 1) if tokens < 100 else (2, 2))
    artifacts = [artifact(config) for config in configs]
    y, reports = simulate_experts(artifacts, call)
    assert not any(report.findings for report in reports)
    assert torch.equal(y, layer_on_cpu(call))


@sample("5")
@pytest.mark.parametrize("tokens", [5, 200])
def test_a_layer_in_bf16_quantizes_nothing(tokens: int) -> None:
    """Numbers are normal, and every sum the tensor core's."""
    layer = replace(LAYER, recipe="bf16xbf16") if tokens < 100 else ExpertLayer(256, 128, 2, 1, recipe="bf16xbf16")
    call = call_of(layer, tokens)
    artifacts = [artifact(config) for config in call.layer.configs(Target.typical("sm_90a", 4), tokens)]
    y, reports = simulate_experts(artifacts, call)
    assert not any(report.findings for report in reports)
    assert call.x_q.numel() == 0 and call.fc1.a is call.x and call.fc1.d_sf is None
    assert torch.equal(y, layer_on_cpu(call))


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16"])
def test_columns_of_linear2_are_summed_part_by_part(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts in the room of one, each launch as early as on a GPU."""
    monkeypatch.setattr(expert_layer, "ROWS_BYTES", 1)
    call, counters = call_of(ExpertLayer(512, 128, 3, 2, recipe=recipe), 9), torch.zeros(2, dtype=torch.int32)
    configs = call.layer.configs(Target.typical("sm_90a", 4), call.tokens)
    assert (configs.fc2.problem.n, list(call.fc2)) == (256, [0, 256])
    launches = launches_of([artifact(config) for config in configs], call, [one.data_ptr() for one in counters])
    read = {"x": call.x, "topk_idx": call.topk_idx, "topk_weights": call.topk_weights, **call.operands._asdict()}
    given = {name: tensor for name, tensor in read.items() if tensor is not None}
    report = Simulator(None, memory_of(given, {"workspace": call.workspace, "counters": counters, "y": call.y})).run(launches)
    assert len(launches) == 6 and not report.findings
    assert torch.equal(call.y, layer_on_cpu(call)) and not counters.any()


@pytest.mark.sweep
def test_gate_and_up_are_stored_by_expert() -> None:
    drawn = call_of(replace(LAYER, gate_up="up_first", preactivations=True), 5)
    call, expected = (replace(drawn, preactivations=torch.full((drawn.rows, 256), 7.0).bfloat16()) for _ in range(2))
    artifacts = [artifact(config) for config in call.layer.configs(Target.typical("sm_90a", 3), 5)]
    y, reports = simulate_experts(artifacts, call)
    assert not any(report.findings for report in reports)
    assert torch.equal(y, layer_on_cpu(expected)) and torch.equal(call.operands.preactivations, expected.operands.preactivations)


def test_registers_are_enough_for_most_experts() -> None:
    for config in (RouteConfig(RoutingProblem(7168, 1024, 32), 132), TokensConfig(SumProblem(7168, 10), 132)):
        compiled = compile_kernel(config)
        assert compiled.resources.stack_bytes == 0
        assert compiled.resources.registers * config.num_threads <= config.arch.registers
        assert compiled.dynamic_smem <= config.arch.smem_bytes


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_models_have_configurations(name: str) -> None:
    for tokens in (1, 64, 4096):
        route, fc1, fc2, total = LAYERS[name].configs(Target.typical("sm_90a"), tokens)
        assert (fc1.problem.n // 2, fc1.problem.k) == (fc2.problem.k, fc2.problem.n) and route.num_sms == total.num_sms
        assert fc1.num_stages >= 4 and find_kernel("gather_gemm").dynamic_smem(fc1) <= fc1.arch.smem_bytes


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (512, {"block_m": 16, "swap_ab": True}),
        (2048, {"block_m": 16, "swap_ab": True}),
        (8192, {"block_m": 48, "swap_ab": True}),
        (32768, {"block_m": 128, "half_tiles": True, "cluster": 2}),
    ],
)
def test_linear2_has_room_for_what_a_router_deals(rows: int, fields: dict[str, object]) -> None:
    """Of 256 experts, whose rows differ."""
    chosen = uneven_tile(LAYERS["deepseek-v3"].fc2, Target.typical("sm_90a"), rows)
    assert {name: chosen[name] for name in fields} == fields


@pytest.mark.parametrize(("tokens", "block_m", "cluster"), [(1024, 64, 1), (2048, 128, 2), (16384, 128, 2)])
def test_linear1_has_room_too(tokens: int, block_m: int, cluster: int) -> None:
    """With 64 rows of an expert on average half of the experts have more.  A GPU with an odd number of SMs has no clusters of two."""
    layer, target = LAYERS["deepseek-v3"], Target.typical("sm_90a")
    for one, expected in ((target, cluster), (replace(target, num_sms=131), 1)):
        configs = layer.configs(one, tokens)
        assert isinstance(configs.fc1, GemmConfig) and (configs.fc1.block_m, configs.fc1.cluster) == (block_m, expected)
        assert configs.fc2.cluster == (expected if block_m == 128 else 1)


def test_points_are_models_and_tokens() -> None:
    assert [str(point) for point in find_points(["deepseek-v3:64", "qwen3-next:4096"])] == ["deepseek-v3:64", "qwen3-next:4096"]
    assert {point.name for point in find_points([])} == {"deepseek-v3", "qwen3-next"}
    for text in ("deepseek-v9:64", "qwen3-next", "qwen3-next:0"):
        with pytest.raises(ProblemError, match=f"points = '{text}': must be MODEL:TOKENS"):
            find_points([text])


def test_bad_layers_are_refused() -> None:
    for fields, message in (
        ({"hidden": 200}, "hidden = 200: must be a multiple of 128"),
        ({"topk": 9}, "topk = 9: must be at most num_experts = 8"),
        ({"num_experts": 1025}, "num_experts = 1025: must be between 1 and 1024"),
        ({"gate_up": ""}, "gate_up = '': must be one of gate_first, up_first, interleaved"),
        ({"activation": "gelu"}, "activation = 'gelu': must be one of"),
        ({"intermediate": 192}, "intermediate = 192: must be a multiple of 128 in fp8xfp8"),
    ):
        with pytest.raises(ProblemError, match=message):
            replace(LAYER, **fields)
    with pytest.raises(ConfigError, match="num_sms = 1: must be at least 2"):
        RouteConfig(LAYER.routing, 1)
    with pytest.raises(ConfigError, match="sorters = 3: must be between 1 and 2"):
        RouteConfig(LAYER.routing, 3, sorters=3)
    route = find_kernel("route")
    with pytest.raises(ProblemError, match="num_tokens = -1: must be between 0"):
        route.choose(LAYER.routing, Target.typical("sm_90a"), -1)
    assert [route.choose(LAYER.routing, Target.typical("sm_90a", sms), 5).sorters for sms in (3, 9)] == [1, 2]

"""The layer of four launches on SM100, in the simulator: tokens quantised as torch does, and y to the bit of the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_runs import artifact
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.expert_routing.layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.sm100 import Sm100RouteConfig
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import MICRO_SCALING, pack_e2m1
from megamoe_dsl.recipe import E2M1
from megamoe_dsl.reference import activate, requantize, scaled_matmul
from megamoe_dsl.reference.router import router_metadata, weighted_sum
from megamoe_dsl.runtime.expert_call import ExpertCall, ExpertWeightsFp8
from megamoe_dsl.runtime.experts import layer_of
from megamoe_dsl.runtime.gemm_weights import gemm_weights
from megamoe_dsl.runtime.simulated_experts import simulate_experts, simulate_route
from megamoe_dsl.target import Target
from sweep import rarely

LAYER = ExpertLayer(256, 128, 4, 2, recipe="fp8xfp4")
PACKED = ExpertLayer(512, 256, 5, 2, gate_up="interleaved", recipe="mxf4xmxf4", preactivations=True)
Drawn = tuple[torch.Tensor, torch.Tensor]


def one_of_each_row(experts: int, rows: int, columns: int, generator: torch.Generator) -> Drawn:
    """Weights with one value a row, 1 or -1, as checkpoints have them: every sum is one product, and exact."""
    codes = torch.zeros(experts, rows, columns, dtype=torch.uint8)
    place = torch.randint(0, columns, (experts, rows, 1), generator=generator)
    sign = torch.randint(0, 2, (experts, rows, 1), generator=generator, dtype=torch.uint8)
    codes.scatter_(2, place, 2 + 8 * sign)
    return pack_e2m1(codes), torch.randint(126, 129, (experts, rows, columns // 32), generator=generator, dtype=torch.uint8)


def drawn(layer: ExpertLayer, tokens: int) -> tuple[ExpertCall, tuple[Drawn, Drawn]]:
    """A call, some of whose slots, and all of one token's, are masked; and the weights as checkpoints have them."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, layer.hidden, generator=generator).bfloat16()
    idx = torch.rand(tokens, layer.num_experts, generator=generator).topk(layer.topk, dim=1).indices
    idx[::3, -1] = -1
    idx[tokens // 2] = -1
    shapes = (2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate)
    w1, w2 = (one_of_each_row(layer.num_experts, *shape, generator) for shape in shapes)
    weights = ExpertWeightsFp8(*gemm_weights(*w1, "sm_100a", gate_up=layer.gate_up), *gemm_weights(*w2, "sm_100a"))
    call = ExpertCall(layer, x, idx, torch.rand(tokens, layer.topk, generator=generator), weights)
    stored = torch.full((call.rows, 2 * layer.intermediate), 7.0).bfloat16() if layer.preactivations else None
    return replace(call, preactivations=stored), (w1, w2)


def gate_and_up(call: ExpertCall, w1: Drawn) -> list[torch.Tensor]:
    """Linear1's results of every expert, in columns as w1 has rows."""
    metadata = router_metadata(call.topk_idx, call.layer.num_experts)
    x_q, x_sf = MICRO_SCALING[call.layer.formats.activations.element].quantize(call.x.float())
    rows = metadata.sources.long().split(metadata.counts.tolist())
    return [
        scaled_matmul(x_q.view(torch.uint8)[own].view(x_q.dtype), x_sf[own], w1[0][expert], w1[1][expert]).bfloat16()
        for expert, own in enumerate(rows)
    ]


def reference(call: ExpertCall, w1: Drawn, w2: Drawn) -> torch.Tensor:
    """The four launches' results, rounded where they round."""
    layer, rows = call.layer, []
    metadata = router_metadata(call.topk_idx, layer.num_experts)
    formulas = Problem(hidden=256, intermediate=128, num_experts=1, topk=1, num_ranks=1, max_tokens_per_rank=1)
    for expert, sums in enumerate(one.float() for one in gate_and_up(call, w1)):
        if layer.gate_up == "interleaved":
            sums = torch.cat([sums[:, ::2], sums[:, 1::2]], dim=1)
        h = requantize(activate(formulas, sums, torch.ones(len(sums))), layer.recipe)
        rows.append(scaled_matmul(*h, w2[0][expert], w2[1][expert]).bfloat16())
    return weighted_sum(torch.cat(rows), metadata.positions, call.topk_weights)


@pytest.mark.parametrize(("layer", "tokens"), [(LAYER, 30), (PACKED, 9), rarely(LAYER, 150)])
def test_a_layer_of_four_launches_is_exact(layer: ExpertLayer, tokens: int) -> None:
    call, weights = drawn(layer, tokens)
    artifacts = [artifact(config) for config in layer.configs(Target.typical("sm_100a", 4), tokens)]
    y, reports = simulate_experts(artifacts, call)
    assert not any(report.findings for report in reports)
    assert torch.equal(y, reference(call, *weights)) and y.unique().numel() > 100
    if call.preactivations is not None:
        stored = torch.cat(gate_and_up(call, weights[0]))
        assert torch.equal(call.preactivations[: len(stored)], stored) and bool((call.preactivations[len(stored) :] == 7).all())


@pytest.mark.parametrize("layer", [LAYER, PACKED])
def test_tokens_are_quantised_as_torch_does(layer: ExpertLayer) -> None:
    call, _ = drawn(layer, 20)
    assert not simulate_route(artifact(Sm100RouteConfig(layer.routing, 3)), call).findings
    x_q, x_sf = MICRO_SCALING[layer.formats.activations.element].quantize(call.x.float())
    assert torch.equal(call.x_q.view(torch.uint8), x_q.view(torch.uint8)) and torch.equal(call.x_sf, x_sf)


def test_layers_of_models_have_configurations() -> None:
    for hidden, intermediate, experts, topk in ((7168, 2048, 256, 8), (2048, 512, 512, 10), (3072, 3072, 128, 4)):
        for recipe in ("fp8xfp4", "mxf4xmxf4"):
            layer = ExpertLayer(hidden, intermediate, experts, topk, recipe=recipe)
            for tokens in (1, 64, 4096):
                _, fc1, fc2, _ = layer.configs(Target.typical("sm_100a"), tokens)
                assert fc1.num_stages >= 4 and fc2.num_stages >= 4 and fc1.problem.formats.hidden.element in (fc1.problem.output, E2M1)


def test_weights_say_the_recipe_and_the_architecture_must_have_it() -> None:
    call, _ = drawn(LAYER, 4)
    assert layer_of(call.x, call.topk_idx, call.weights.w1, "gate_first", "silu") == LAYER
    with pytest.raises(ConfigError, match=r"problem.recipe = 'fp8xfp4': must be fp8xfp8 or fp8xmxfp4 or bf16xbf16 for sm_90a"):
        LAYER.configs(Target.typical("sm_90a"), 4)
    with pytest.raises(ProblemError, match=r"w2_sf.dtype = torch.uint8: must be torch.int32"):
        replace(call, weights=replace(call.weights, w2_sf=call.weights.w2_sf.view(torch.uint8))).check()

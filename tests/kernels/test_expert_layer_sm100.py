"""The layer of four launches on SM100, in the simulator: tokens quantized as torch does, and y to the bit of the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernel_cases.gather import as_integers
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.config import RouteConfig
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant import MICRO_SCALING, nvfp4_factor, pack_e2m1, quantize_nvfp4
from megamoe_dsl.quant.expert_factors import expert_factors
from megamoe_dsl.quant.weights import TORCH_DTYPES
from megamoe_dsl.recipe import E2M1, E4M3
from megamoe_dsl.runtime.cpu_experts import layer_on_cpu
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.experts import call_of
from megamoe_dsl.runtime.gemm_scales import gemm_weights
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import simulate_experts, simulate_route
from sweep import rarely, sample

LAYER = ExpertLayer(256, 128, 4, 2, recipe="fp8xfp4")
NVFP4 = ExpertLayer(512, 256, 5, 2, gate_up="up_first", recipe="nvfp4xnvfp4")
PACKED = ExpertLayer(512, 256, 5, 2, gate_up="interleaved", recipe="mxf4xmxf4", preactivations=True)
MXFP8 = ExpertLayer(256, 128, 5, 2, gate_up="interleaved", recipe="mxfp8xmxfp8", preactivations=True)
Drawn = tuple[torch.Tensor, torch.Tensor]


def one_of_each_row(layer: ExpertLayer, rows: int, columns: int, generator: torch.Generator) -> Drawn:
    """Weights with one value a row, 1 or -1, as checkpoints have them: every sum is one product, and exact."""
    experts = layer.num_experts
    codes = torch.zeros(experts, rows, columns, dtype=torch.uint8)
    place = torch.randint(0, columns, (experts, rows, 1), generator=generator)
    sign = torch.randint(0, 2, (experts, rows, 1), generator=generator, dtype=torch.uint8)
    form = layer.formats.weights
    one, minus = (0x38, 0x80) if form.element == E4M3 else (2, 8)
    codes.scatter_(2, place, one + minus * sign)
    ends = (0x34, 0x40) if form.factor else (126, 129)
    scales = torch.randint(*ends, (experts, rows, columns // form.channels), generator=generator, dtype=torch.uint8)
    return codes.view(torch.float8_e4m3fn) if form.element == E4M3 else pack_e2m1(codes), scales.view(TORCH_DTYPES[form.scale])


def factors_of(layer: ExpertLayer, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """Of tokens and weights those whose products are about 1, of gate and up as calibration would leave them."""
    if not layer.formats.weights.factor:
        return None
    gate, up, hidden, w2 = torch.rand(4, layer.num_experts, generator=generator) + 0.5
    return expert_factors(nvfp4_factor(x.float()), torch.stack([gate, up], dim=1), hidden / 500, w2)


def drawn(layer: ExpertLayer, tokens: int) -> ExpertCall:
    """A call, some of whose slots, and all of one token's, are masked."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, layer.hidden, generator=generator).bfloat16()
    x[-1] = 0
    x[-2, :32] *= torch.exp2(-torch.tensor([15, 20]).repeat_interleave(16))  # scales of E4M3 that are subnormal, and zero
    idx = torch.rand(tokens, layer.num_experts, generator=generator).topk(layer.topk, dim=1).indices
    idx[::3, -1] = -1
    idx[tokens // 2] = -1
    shapes = (2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate)
    w1, w2 = (one_of_each_row(layer, *shape, generator) for shape in shapes)
    weights = LayerOperands(*gemm_weights(*w1, "sm_100a", gate_up=layer.gate_up), *gemm_weights(*w2, "sm_100a"))
    call = ExpertCall(layer, x, idx, torch.rand(tokens, layer.topk, generator=generator), weights)
    call = replace(call, operands=call.operands._replace(factors=factors_of(layer, x, generator)))
    stored = torch.full((call.rows, 2 * layer.intermediate), 7.0).bfloat16() if layer.preactivations else None
    return replace(call, operands=call.operands._replace(preactivations=stored))


def quantized(call: ExpertCall) -> Drawn:
    """Tokens, as torch quantizes them."""
    if call.each_factor is not None:
        return quantize_nvfp4(call.x, call.each_factor.x[0])
    return MICRO_SCALING[call.layer.formats.activations.element].quantize(call.x.float())


@sample("layer2-20")
@pytest.mark.parametrize(("layer", "tokens"), [(LAYER, 30), (PACKED, 9), (NVFP4, 20), (MXFP8, 20), rarely(LAYER, 150), rarely(NVFP4, 150)])
def test_a_layer_of_four_launches_is_exact(layer: ExpertLayer, tokens: int) -> None:
    """Gate and up are stored, or not."""
    call = drawn(layer, tokens)
    artifacts = [artifact(config) for config in layer.configs(Target.typical("sm_100a", 4), tokens)]
    y, reports = simulate_experts(artifacts, call)
    assert not any(report.findings for report in reports)
    stored = call.operands.preactivations
    expected = replace(call, operands=call.operands._replace(preactivations=None if stored is None else torch.full_like(stored, 7.0)))
    assert torch.equal(y, layer_on_cpu(expected)) and y.unique().numel() > 100
    assert stored is None or torch.equal(stored, expected.operands.preactivations)


@pytest.mark.parametrize("layer", [LAYER, PACKED, NVFP4])
def test_tokens_are_quantized_as_torch_does(layer: ExpertLayer) -> None:
    call = drawn(layer, 20)
    assert not simulate_route(artifact(RouteConfig(layer.routing, 3, arch_name="sm_100a")), call).findings
    x_q, x_sf = quantized(call)
    assert torch.equal(call.x_q.view(torch.uint8), x_q.view(torch.uint8)) and torch.equal(as_integers(call.x_sf), as_integers(x_sf))


def test_layers_of_models_have_configurations() -> None:
    for hidden, intermediate, experts, topk in ((7168, 2048, 256, 8), (2048, 512, 512, 10), (3072, 3072, 128, 4)):
        for recipe in ("fp8xfp4", "mxf4xmxf4"):
            layer = ExpertLayer(hidden, intermediate, experts, topk, recipe=recipe)
            for tokens in (1, 64, 4096):
                _, fc1, fc2, _ = layer.configs(Target.typical("sm_100a"), tokens)
                assert fc1.num_stages >= 4 and fc2.num_stages >= 4 and fc1.problem.formats.hidden.element in (fc1.problem.output, E2M1)


def test_weights_say_the_recipe_and_the_architecture_must_have_it() -> None:
    call = drawn(LAYER, 4)
    assert call_of(call.x, (call.topk_idx, call.topk_weights), call.operands, "gate_first", "silu", None, None).layer == LAYER
    with pytest.raises(ConfigError, match=r"problem.recipe = 'fp8xfp4': must be fp8xfp8 or fp8xmxfp4 or bf16xbf16 for sm_90a"):
        LAYER.configs(Target.typical("sm_90a"), 4)
    with pytest.raises(ProblemError, match=r"w2_sf.dtype = torch.uint8: must be torch.int32"):
        replace(call, operands=call.operands._replace(w2_sf=call.operands.w2_sf.view(torch.uint8))).check()

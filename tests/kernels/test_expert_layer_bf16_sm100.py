"""The layer of four launches in BF16 on SM100, in the simulator: tokens stay as they are, and y is the reference's to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.quant import no_scales
from megamoe_dsl.runtime import experts
from megamoe_dsl.runtime.cpu_experts import layer_on_cpu
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import simulate_experts
from sweep import rarely, sample

LAYER = ExpertLayer(256, 128, 4, 2, recipe="bf16xbf16")
STORED = ExpertLayer(384, 256, 5, 2, gate_up="interleaved", recipe="bf16xbf16", preactivations=True)


def one_of_each_row(experts: int, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Weights with one power of two a row: every sum is one product, which any tensor core gives exactly."""
    place = torch.randint(0, columns, (experts, rows, 1), generator=generator)
    values = torch.exp2(torch.randint(-1, 2, place.shape, generator=generator)) * (
        1 - 2 * torch.randint(0, 2, place.shape, generator=generator)
    )
    return torch.zeros(experts, rows, columns).scatter_(2, place, values).bfloat16()


def call_of(layer: ExpertLayer, tokens: int) -> ExpertCall:
    """Some slots, and all of one token's, are masked."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, layer.hidden, generator=generator).bfloat16()
    idx = torch.rand(tokens, layer.num_experts, generator=generator).topk(layer.topk, dim=1).indices
    idx[::3, -1] = -1
    idx[tokens // 2] = -1
    w1 = one_of_each_row(layer.num_experts, 2 * layer.intermediate, layer.hidden, generator)
    w2 = one_of_each_row(layer.num_experts, layer.hidden, layer.intermediate, generator)
    weights = LayerOperands(w1, no_scales(w1), w2, no_scales(w2))
    call = ExpertCall(layer, x, idx, torch.rand(tokens, layer.topk, generator=generator), weights)
    stored = torch.full((call.rows, 2 * layer.intermediate), 7.0).bfloat16() if layer.preactivations else None
    return replace(call, operands=call.operands._replace(preactivations=stored))


@sample("layer1-9")
@pytest.mark.parametrize(("layer", "tokens"), [(LAYER, 30), (STORED, 9), rarely(LAYER, 150)])
def test_a_layer_of_four_launches_is_exact(layer: ExpertLayer, tokens: int) -> None:
    call = call_of(layer, tokens)
    artifacts = [artifact(config) for config in layer.configs(Target.typical("sm_100a", 4), tokens)]
    y, reports = simulate_experts(artifacts, call)
    stored = None if call.operands.preactivations is None else torch.full_like(call.operands.preactivations, 7.0)
    assert not any(report.findings for report in reports)
    assert call.x_q.numel() == 0 and call.fc1.a is call.x and call.fc1.d_sf is None
    assert torch.equal(y, layer_on_cpu(replace(call, operands=call.operands._replace(preactivations=stored)))) and y.unique().numel() > 100
    if stored is not None:
        assert torch.equal(call.operands.preactivations, stored)


@pytest.mark.parametrize(("hidden", "intermediate", "experts", "topk"), [(7168, 2048, 256, 8), (2048, 512, 512, 10)])
def test_layers_of_models_have_configurations(hidden: int, intermediate: int, experts: int, topk: int) -> None:
    """Linear1 gathers; Linear2 is the packed GEMM, whose tile has room for nearly all of an expert's rows while there is such a tile."""
    layer = ExpertLayer(hidden, intermediate, experts, topk, recipe="bf16xbf16")
    found = []
    for tokens in (1, 64, 4096, 16384):
        _, fc1, fc2, _ = layer.configs(Target.typical("sm_100a"), tokens)
        assert type(fc1) is Sm100GemmConfig and type(fc2) is Sm100GemmConfig and fc2.dynamic_schedule
        assert fc1.num_stages >= 4 and fc2.num_stages >= 4
        found.append(fc2.block_m)
    assert found[0] == 32 and found == sorted(found)


def test_weights_in_bf16_say_the_recipe() -> None:
    call = call_of(LAYER, 4)
    chosen = call.topk_idx, call.topk_weights
    assert experts.call_of(call.x, chosen, call.operands, "gate_first", "silu", None, None).layer == LAYER

"""gpt-oss's layer of four launches in the simulator: biases, a clamp, channels that fill no tile, BF16 weights of tokens, int32 indices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megamoe_dsl import ProblemError, moe
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.quant import no_scales, quantize_weight_e4m3
from megamoe_dsl.runtime.cpu_experts import layer_on_cpu
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import simulate_experts
from sweep import rarely

SM90 = Target.typical("sm_90a", 3)
GPT_OSS = ExpertLayer(
    96, 160, 4, 2, "interleaved", "swigluoai", "bf16xbf16", activation_clamp=0.5, biases="bf16", indices="i32", weights="bf16"
)
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def call_of(layer: ExpertLayer, tokens: int) -> ExpertCall:
    """One slot is masked, and one names no expert."""
    generator = torch.Generator().manual_seed(tokens)
    rows = (2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate)
    drawn = [torch.randn(layer.num_experts, *shape, generator=generator) / 8 for shape in rows]
    made = [quantize_weight_e4m3(one) if layer.formats.scaled else (one.bfloat16(), no_scales(one)) for one in drawn]
    biases = [torch.randn(layer.num_experts, count, generator=generator).to(DTYPES[layer.biases]) for count, _ in rows]
    idx = torch.rand(tokens, layer.num_experts, generator=generator).topk(layer.topk, dim=1).indices
    idx[0, 0], idx[-1, 1] = -1, layer.num_experts
    x = torch.randn(tokens, layer.hidden, generator=generator).bfloat16()
    weights = torch.rand(tokens, layer.topk, generator=generator).to(DTYPES[layer.weights])
    idx = idx.int() if layer.indices == "i32" else idx
    stored = torch.full((tokens * layer.topk, 2 * layer.intermediate), 7.0).bfloat16() if layer.preactivations else None
    return ExpertCall(layer, x, idx, weights, LayerOperands(*made[0], *made[1], *biases, preactivations=stored))


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [
        (GPT_OSS, 5),
        rarely(replace(GPT_OSS, num_experts=2, gate_up="gate_first", preactivations=True, biases="f32"), 140),
        rarely(replace(GPT_OSS, gate_up="up_first", intermediate=288, hidden=320, preactivations=True), 40),
        rarely(replace(GPT_OSS, hidden=2880, intermediate=96), 3),
        rarely(ExpertLayer(128, 128, 4, 2, activation="swigluoai", biases="f32"), 5),
    ],
)
def test_the_launches_give_the_bits_of_the_reference(layer: ExpertLayer, tokens: int) -> None:
    """Of few tokens, and of so many that tiles of both linears have 128 rows and end where neither D nor K does."""
    call, expected = call_of(layer, tokens), call_of(layer, tokens)
    y, reports = simulate_experts([artifact(config) for config in layer.configs(SM90, tokens)], call)
    assert not any(report.findings for report in reports)
    assert torch.equal(y, layer_on_cpu(expected))
    if layer.preactivations:
        assert torch.equal(call.operands.preactivations, expected.operands.preactivations)


def test_what_does_not_fit_is_named() -> None:
    call = call_of(replace(GPT_OSS, weights="f32", indices="i64"), 4)
    w = call.operands
    assert w.w1_bias is not None and w.w2_bias is not None
    given = dict(zip(("x", "w1", "w1_sf", "w2", "w2_sf", "topk_idx"), (call.x, w.w1, None, w.w2, None, call.topk_idx), strict=True))
    given["topk_weights"] = call.topk_weights
    for changes, message in (
        ({"w1_bias": w.w1_bias}, "w2_bias = None: must be a tensor beside the other linear's"),
        ({"w2_bias": w.w2_bias}, "w2_bias = 'a tensor': must be None but beside the other linear's"),
        ({"w1_bias": w.w1_bias, "w2_bias": w.w2_bias.float()}, "w2_bias.dtype = torch.float32: must be torch.bfloat16"),
        ({"w1_bias": w.w1_bias[:, 1:], "w2_bias": w.w2_bias}, r"w1_bias.shape = \(4, 319\): must be \(4, 320\)"),
        ({"w1_bias": w.w1_bias.double(), "w2_bias": w.w2_bias}, "w1_bias.dtype = torch.float64: must be torch.float32"),
        ({"activation_clamp": 0.0}, "activation_clamp = 0.0: must be None or a number"),
        ({"activation": "situ", "activation_clamp": 7.0}, "activation_clamp = 7.0: must be None: situ limits gate and up itself"),
        ({"w1": w.w1[:, :, :80].contiguous(), "x": call.x[:, :80].contiguous()}, "hidden = 80: must be a multiple of 32 in bf16xbf16"),
        ({"w1": w.w1[:, :272].contiguous()}, "intermediate = 136: must be a multiple of 32 in bf16xbf16"),
        ({"w1": w.w1.to(torch.float8_e4m3fn)}, "hidden = 96: must be a multiple of 128 in fp8xfp8"),
        ({"topk_weights": call.topk_weights.half()}, "topk_weights.dtype = torch.float16: must be torch.float32"),
    ):
        with pytest.raises(ProblemError, match=message):
            moe(**{**given, **changes})  # type: ignore[arg-type]


def test_calls_in_a_row_differ_in_one_thing() -> None:
    """Biases, the clamp, the types of indices and of weights: each counts, and the same call gives the same again."""
    call = call_of(replace(GPT_OSS, weights="f32", indices="i64"), 6)
    w, weights = call.operands, call.topk_weights.bfloat16().float()
    assert w.w1_bias is not None and w.w2_bias is not None

    def y(idx: torch.Tensor = call.topk_idx, weights: torch.Tensor = weights, **more: object) -> torch.Tensor:
        layout = {"gate_up": "interleaved", "activation": "swigluoai", "w1_bias": w.w1_bias, "w2_bias": w.w2_bias, **more}
        return moe(call.x, w.w1, None, w.w2, None, idx, weights, **layout)  # type: ignore[arg-type]

    first = y()
    assert torch.equal(y(idx=call.topk_idx.int()), first) and torch.equal(y(weights=weights.bfloat16()), first)
    assert torch.equal(y(w1_bias=w.w1_bias.float(), w2_bias=w.w2_bias.float()), first)
    others = [y(w1_bias=w.w1_bias + 1), y(w2_bias=w.w2_bias + 1), y(w1_bias=None, w2_bias=None), y(activation_clamp=0.25)]
    assert not any(torch.equal(one, first) for one in others) and torch.equal(y(), first)
    with torch.inference_mode():
        assert torch.equal(y(), first)


@pytest.mark.parametrize("layer", [GPT_OSS, replace(GPT_OSS, biases="")])
def test_blackwell_refuses_by_name(layer: ExpertLayer) -> None:
    for problem in (layer, replace(layer, hidden=128)):
        if problem.biases or problem.hidden % 64:
            with pytest.raises(ConfigError, match=r"problem\.(k|biases) = "):
                problem.configs(Target.typical("sm_100a"), 8)
    with pytest.raises(ConfigError, match=r"problem\.n = 320: must be a multiple of 256"):
        replace(layer, hidden=128, biases="").configs(Target.typical("sm_100a"), 8)

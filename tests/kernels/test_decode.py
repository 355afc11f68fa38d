"""The layer of a few tokens in one launch, in the simulator: the reference to the bit, which the four launches have too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sm90_runs import hopper_case
from test_batch_invariance import ALONE, SOME, TOKENS, bits, expert_call
from test_expert_routing import call_of

from fuzzing.trial import repeated
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.problem import GATE_UP
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.decode.config import DecodeConfig
from megamoe_dsl.kernels.decode.problem import DecodeProblem
from megamoe_dsl.kernels.expert_layer import ExpertLayer, LayerConfigs
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import quantize_e4m3_f32, transform_weights
from megamoe_dsl.runtime.cpu_experts import layer_on_cpu
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import read_by, simulate_decode, simulate_decoding, simulate_experts, simulate_stream
from sweep import rarely, sample

FP8, BF16 = "fp8xfp8", "bf16xbf16"
TARGET = Target.typical("sm_90a", 3)


def config_of(call: ExpertCall) -> DecodeConfig:
    (config,) = call.layer.kernels(TARGET, call.tokens)
    return config


def assert_exact(call: ExpertCall, launches: int = 1) -> None:
    report = simulate_decode(artifact(config_of(call)), call, launches=launches)
    assert not report.findings
    assert torch.equal(call.y, layer_on_cpu(call))


SHAPES = [
    *((recipe, 256, 128, 5, order) for recipe in (FP8, BF16) for order in GATE_UP[1:]),
    (FP8, 384, 640, 2, "gate_first"),
    (FP8, 128, 128, 16, "gate_first"),
    (BF16, 160, 96, 16, "interleaved"),
    (BF16, 32, 32, 3, "gate_first"),
    (BF16, 96, 416, 9, "up_first"),
]


@sample("fp8xfp8-384-640-2-gate_first", "bf16xbf16-160-96-16-interleaved", "fp8xfp8-256-128-5-up_first")
@pytest.mark.parametrize(("recipe", "hidden", "intermediate", "tokens", "gate_up"), SHAPES)
def test_every_shape_is_exact(recipe: str, hidden: int, intermediate: int, tokens: int, gate_up: str) -> None:
    """Hidden and intermediate of partial tiles and K blocks; some slots, and all of one token's, are masked."""
    assert_exact(call_of(ExpertLayer(hidden, intermediate, 8, 2, gate_up, recipe=recipe), tokens))


@sample("fp8xfp8-0")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("recipe", [FP8, BF16])
def test_a_short_ring_is_exact(recipe: str, seed: int) -> None:
    """Many K blocks through few stages, several tiles of a CTA, and a launch that begins before the one before it has ended."""
    call = call_of(ExpertLayer(640, 256, 4, 3, recipe=recipe), 6)
    config = replace(config_of(call), num_stages=4)
    assert not simulate_decode(artifact(config), call, launches=2, seed=seed).findings
    assert torch.equal(call.y, layer_on_cpu(call))


def test_layers_of_other_shapes_may_share_a_stream_s_memory() -> None:
    """What a launch leaves is right for the next one if both have as many bytes, wherever their results lie."""
    calls = [call_of(ExpertLayer(512, 256, 4, 1), 3), call_of(ExpertLayer(256, 128, 8, 2), 4)]
    stream = [(artifact(config_of(call)), read_by(call), {"y": call.y}) for call in calls]
    assert not simulate_stream([*stream, *stream]).findings
    assert all(torch.equal(call.y, layer_on_cpu(call)) for call in calls)


@sample("True-16")  # runtime/test_few_tokens.py compares the launches of both
@pytest.mark.parametrize("tokens", [3, 16])
@pytest.mark.parametrize("weigh_results", [False, True])
def test_packed_weights_have_the_bits_of_the_fused_layer(weigh_results: bool, tokens: int) -> None:
    """E2M1, both blocks of both groups of a tile, halves of tiles; top-k weights where a problem wants them.  Of 16 tokens an expert has
    more rows than a tile."""
    problem = Problem(512, 256, 4, 2, 1, tokens, recipe="fp8xmxfp4", weigh_results=weigh_results)
    x = torch.randn(tokens, 512, generator=torch.Generator().manual_seed(2)).bfloat16()
    x_q, x_sf = quantize_e4m3_f32(x.float())
    case = replace(hopper_case(problem, (tokens,), 1, mask=0.2, exact=False), x=[x_q], x_sf=[x_sf])
    (weights,), (idx,), (topk_weights,) = case.weights, case.topk_idx, case.topk_weights
    packed, y = transform_weights(problem, TARGET.arch, weights), torch.empty_like(x)
    config = choose(DecodeProblem(512, 256, 4, 2, recipe="fp8xmxfp4", weigh_results=weigh_results), Target.typical("sm_90a", 5), tokens)
    assert (idx[idx >= 0].bincount() > config.block_m).any() == (tokens == 16)
    read = {"x": x, "topk_idx": idx, "topk_weights": topk_weights, "w1": packed.fc1, "w2": packed.fc2}
    stats = torch.zeros(4, dtype=torch.int32)
    assert not simulate_decoding(artifact(config), read, y, launches=2, stats=stats).findings
    assert torch.equal(y, case.reference().y[0]) and torch.equal(stats, 2 * idx[idx >= 0].bincount(minlength=4))


def test_experts_may_have_many_rows_or_none() -> None:
    """All tokens have one expert, in every slot; slots name what is no expert; nothing is chosen at all."""
    layer = ExpertLayer(128, 128, 70, 13)
    for fill in (69, -1):
        call = call_of(layer, 4)
        call.topk_idx.fill_(fill)
        assert_exact(call, launches=2)
    call.topk_idx[:4, 0] = torch.tensor([70, -2, 1 << 32, 5])
    assert_exact(call)


def test_weights_of_zero_and_of_masked_slots() -> None:
    """A weight of zero makes a row zero, not absent: its NaN is the token's."""
    call = call_of(ExpertLayer(128, 128, 8, 2, recipe=BF16, weights="bf16", indices="i32"), 3)
    call = replace(call, topk_idx=call.topk_idx.int(), topk_weights=call.topk_weights.bfloat16())
    call.topk_weights.masked_fill_(call.topk_idx < 0, torch.nan)
    call.topk_weights[0] = 0
    assert_exact(call)


@pytest.mark.parametrize("fields", [rarely({"activation": "swigluoai"}), {"activation_clamp": 0.5}, {"activation": "situ"}])
def test_activations_are_exact(fields: dict[str, Any]) -> None:
    assert_exact(call_of(ExpertLayer(128, 128, 8, 2, **fields), 3))


@sample("fp8xfp8")
@pytest.mark.parametrize("recipe", [FP8, BF16])
def test_a_token_has_the_bits_of_four_launches_and_of_any_batch(recipe: str) -> None:
    """Sums cancel, so that additions in another order would show."""
    x = repeated(torch.randn(TOKENS, 512, generator=torch.Generator().manual_seed(1)).bfloat16(), 1)
    call, found = expert_call(recipe, x), []
    for tokens in (range(TOKENS), SOME, ALONE):
        own = replace(call, x=x[tokens], topk_idx=call.topk_idx[tokens], topk_weights=call.topk_weights[tokens])
        simulate_decode(artifact(config_of(own)), own, race=False)
        found.append(dict(zip(tokens, bits(own.y), strict=True)))
    simulate_experts([artifact(config) for config in call.layer.configs(TARGET, TOKENS)], call, race=False)
    four = dict(enumerate(bits(call.y)))
    assert all(one == {token: four[token] for token in one} for one in found)


def test_a_few_tokens_on_hopper_take_one_launch() -> None:
    layer = ExpertLayer(2048, 768, 128, 8)
    few = {tokens: layer.kernels(Target.typical("sm_90a"), tokens) for tokens in (1, 8, 9, 16)}
    assert {tokens: one[0].block_m for tokens, one in few.items()} == {1: 8, 8: 8, 9: 16, 16: 16}
    assert all(one[0].num_stages >= 8 for one in few.values())
    others = (layer.kernels(Target.typical("sm_90a"), tokens) for tokens in (0, 17))
    stored, biased = (replace(layer, **fields).kernels(TARGET, 4) for fields in ({"preactivations": True}, {"biases": "f32"}))
    blackwell = replace(layer, recipe="fp8xfp4").kernels(Target.typical("sm_100a"), 4)
    wide = ExpertLayer(1 << 20, 128, 8, 2).kernels(TARGET, 4)  # more between the linears than a stream keeps
    assert all(isinstance(one, LayerConfigs) for one in (*others, stored, biased, blackwell, wide))


def test_registers_are_enough() -> None:
    for tokens in (1, 16):
        (config,) = ExpertLayer(7168, 2048, 256, 8).kernels(Target.typical("sm_90a"), tokens)
        compiled = compile_kernel(config)
        assert compiled.resources.stack_bytes == 0 and compiled.dynamic_smem <= config.arch.smem_bytes
        assert compiled.resources.registers * config.num_threads <= config.arch.registers
        assert config.smem.region["totals"].field.shape == (config.num_threads // 32,)  # each warp writes its own


def test_bad_configurations_are_refused() -> None:
    problem = ExpertLayer(256, 128, 8, 2).decode
    for fields, message in (
        ({"max_tokens": 24}, "max_tokens = 24: must be 8 or 16"),
        ({"num_stages": 99}, "num_stages = 99: must be between"),
        ({"indices": "i16"}, "indices = 'i16': must be i64 or i32"),
        ({"problem": replace(problem, recipe="fp8xfp4")}, "problem.recipe = 'fp8xfp4': must be fp8xfp8, fp8xmxfp4 or bf16xbf16"),
    ):
        with pytest.raises(ConfigError, match=message):
            DecodeConfig(**{"problem": problem, "max_tokens": 8, "num_sms": 3, **fields})
    with pytest.raises(ConfigError, match="num_tokens = 17: must be at most 16"):
        choose(problem, TARGET, 17)
    for fields, message in (
        ({"hidden": 100}, "hidden = 100: must be a multiple of 128"),
        ({"gate_up": ""}, "gate_up = '': must be one of"),
    ):
        with pytest.raises(ProblemError, match=message):
            replace(problem, **fields)

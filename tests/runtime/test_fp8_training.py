"""`moe` with gradients in FP8 and MXFP8 on CPU tensors, and what is refused; kernels/test_simulated_training.py has its kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl import ProblemError, moe, padded_rows, quantize_both, quantize_experts
from megamoe_dsl.quant import quantize
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.runtime import expert_gradients
from megamoe_dsl.runtime.gemm_scales import gemm_weights
from runtime.test_expert_training import DY, NAMES, assert_near, dy_of, in_float64, layer

FP8, MXFP8 = "fp8xfp8", "mxfp8xmxfp8"
both = pytest.mark.parametrize("recipe", [FP8, MXFP8])


def fp8(*trained: str, recipe: str = FP8, **shape: Any) -> dict[str, Any]:
    """Arguments of `moe`, as those of a layer in BF16."""
    return {**layer(*trained, **shape), "recipe": recipe}


def gradients(given: dict[str, Any], **more: Any) -> dict[str, torch.Tensor]:
    moe(**given, **more).backward(dy_of(given["x"]))
    return {name: given[name].grad for name in NAMES if given[name].requires_grad}


@both
@pytest.mark.parametrize("gate_up", ["gate_first", "up_first", "interleaved"])
def test_gradients_are_near_float64(gate_up: str, recipe: str) -> None:
    given = fp8(*NAMES, recipe=recipe)
    found = gradients(given, gate_up=gate_up)
    assert_near(found, in_float64(given, gate_up), 0.1)
    assert not found["w1"][3].any() and not found["w2"][3].any() and found["topk_weights"][2, 1] == 0


@both
@pytest.mark.parametrize("gate_up", ["gate_first", "interleaved"])
def test_the_result_is_that_of_quantized_weights(gate_up: str, recipe: str) -> None:
    given, form = layer(), RECIPES[recipe].weights
    for name, order in (("w1", gate_up), ("w2", "")):
        given[name], given[f"{name}_sf"] = gemm_weights(*quantize(given[name], form), gate_up=order)
    expected = moe(**given, gate_up=gate_up, recipe=recipe)
    for trained in ((), ("w1",)):
        assert torch.equal(moe(**fp8(*trained, recipe=recipe), gate_up=gate_up), expected)


@pytest.mark.parametrize("changed", ["x", "w1", "w2", "topk_weights", "topk_idx"])
def test_two_calls_that_differ_in_one_thing(changed: str) -> None:
    """And the same twice."""
    first, again, other = fp8(*NAMES), fp8(*NAMES), fp8(*NAMES)
    other[changed] = other["topk_idx"].roll(1, 0) if changed == "topk_idx" else (other[changed].detach() * 1.5).requires_grad_()
    before, after, differs = gradients(first), gradients(again), gradients(other)
    assert all(torch.equal(before[name], after[name]) for name in NAMES)
    assert any(not torch.equal(before[name], differs[name]) for name in NAMES)
    assert_near(differs, in_float64(other), 0.1)


@both
@pytest.mark.parametrize("recompute", [False, True])
def test_weights_are_quantized_before(recompute: bool, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for calls with gradients and without, which quantize none."""
    given, expected = fp8(*NAMES, recipe=recipe), gradients(fp8(*NAMES, recipe=recipe))
    made, y = quantize_experts(given["w1"], given["w2"], recipe=recipe), moe(**fp8(recipe=recipe))
    monkeypatch.setattr(expert_gradients, "quantize_weights", None)
    for _ in range(2):
        found = gradients(given, quantized=made, recompute=recompute)
        assert all(torch.equal(found[name], expected[name]) for name in NAMES)
        given = {name: one.detach().requires_grad_(name in NAMES) if name in NAMES else one for name, one in given.items()}
    with torch.no_grad():
        assert torch.equal(moe(**given, quantized=made), y)


def test_other_weights_and_later_ones_are_refused() -> None:
    given = fp8("x", "w1")
    made = quantize_experts(given["w1"], given["w2"])
    assert moe(**given, quantized=made).requires_grad
    others = "quantized = 'of other weights, or of weights that have changed since'"
    with pytest.raises(ProblemError, match=others):
        moe(**fp8("x"), quantized=made)
    with torch.no_grad():
        given["w1"].mul_(2)
    with pytest.raises(ProblemError, match=others):
        moe(**given, quantized=made)
    with pytest.raises(ProblemError, match="quantized = 'weights in E4M3': must be None but for"):
        moe(**{**given, "recipe": None}, quantized=made)
    with pytest.raises(ProblemError, match=r"quantized\.recipe = 'fp8xfp8': must be mxfp8xmxfp8, as the layer's"):
        moe(**{**given, "recipe": MXFP8}, quantized=made)
    with pytest.raises(ProblemError, match="recipe = 'fp8xfp4': must be fp8xfp8 or mxfp8xmxfp8"):
        quantize_experts(given["w1"], given["w2"], recipe="fp8xfp4")
    with pytest.raises(ProblemError, match=r"quantized\.w1\.shape"):
        moe(**fp8("x", experts=3), quantized=made)
    with pytest.raises(ProblemError, match=r"quantized\.w2\.shape"):
        moe(**fp8("x"), quantized=made._replace(w2=made.w2[:, :128]))
    with pytest.raises(ProblemError, match="hidden = 192: must be a multiple of 128"):
        quantize_experts(torch.zeros(4, 256, 192).bfloat16(), given["w2"])


@pytest.mark.parametrize("trained", NAMES)
def test_one_gradient_alone_is_the_same(trained: str) -> None:
    assert torch.equal(gradients(fp8(trained))[trained], gradients(fp8(*NAMES))[trained])


@both
@pytest.mark.parametrize(("tokens", "experts"), [(1, 4), (130, 3), (5, 70)])
def test_odd_shapes(tokens: int, experts: int, recipe: str) -> None:
    given = fp8(*NAMES, tokens=tokens, experts=experts, recipe=recipe)
    assert_near(gradients(given), in_float64(given), 0.15)


@both
def test_weights_gradients_go_to_main_grads(recipe: str) -> None:
    given, totals = fp8(*NAMES, recipe=recipe), (torch.ones(4, 256, 256), torch.ones(4, 256, 128))
    gradients(given, main_grads=totals)
    rounded = gradients(fp8(*NAMES, recipe=recipe))
    assert given["w1"].grad is None and given["w2"].grad is None
    for name, total in zip(("w1", "w2"), totals, strict=True):
        assert_near({name: total - 1}, {name: rounded[name].double()}, 0.01)


@both
def test_a_compiled_layer_has_the_same_gradients(recipe: str) -> None:
    """And without gradients the same result."""
    compiled = torch.compile(lambda **given: moe(**given) * 1, fullgraph=True, backend="aot_eager")
    given = fp8(*NAMES, recipe=recipe)
    compiled(**given).backward(DY)
    assert all(torch.equal(given[name].grad, one) for name, one in gradients(fp8(*NAMES, recipe=recipe)).items())
    assert torch.equal(compiled(**fp8(recipe=recipe)), moe(**fp8(recipe=recipe)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w1_sf": torch.ones(1)}, "w1_sf = 'a tensor': must be None of bfloat16 weights"),
        ({"w1": torch.zeros(4, 128, 256).bfloat16()}, "intermediate = 64: must be a multiple of 128 in fp8xfp8"),
        ({"w1": torch.zeros(4, 256, 192).bfloat16()}, "hidden = 192: must be a multiple of 128 in fp8xfp8"),
        ({"w2": torch.zeros(4, 256, 128)}, "w2.dtype = torch.float32"),
        ({"w1": torch.zeros(256, 256).bfloat16()}, r"w1.shape = \(256, 256\)"),
        ({"recipe": "mxf4xmxf4"}, "recipe = 'mxf4xmxf4': must be None"),
        ({"activation_clamp": 2.0}, "activation_clamp = 2.0: must be None"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        moe(**{**fp8("x"), **changes})


@pytest.mark.parametrize("counts", [(0,) * 9, (1, 0, 128), (127, 129, 0), (300, 5, 77)])
def test_rows_are_padded(counts: tuple[int, ...]) -> None:
    """Of more rows than groups have, those behind are nowhere."""
    ends = torch.tensor(counts).cumsum(0).int()
    total = int(ends[-1])
    found = padded_rows(ends, total + 3)
    sources, first, begins = [], 0, 0
    for count, end in zip(counts, found.ends.tolist(), strict=True):
        assert end - begins == -(-count // 128) * 128
        sources += [*range(first, first + count), *[-1] * (end - begins - count)]
        first, begins = first + count, end
    assert found.sources[: len(sources)].tolist() == sources and (found.sources[len(sources) :] == -1).all()
    most = total + 3 + min(len(counts), total + 3) * 127
    assert len(found.sources) == most // 128 * 128 and (found.places[total:] == -1).all()
    assert torch.equal(found.sources[found.places[:total].long()], torch.arange(total).int())


def test_padded_rows_quantized_are_rows() -> None:
    x, padded = torch.randn(9, 128).bfloat16(), padded_rows(torch.tensor([4, 4, 9], dtype=torch.int32), 9)
    found = quantize_both(x, padded.sources)
    assert found.codes is not None and torch.equal(found.codes[padded.places.long()].float(), quantize_rows(x))
    assert not found.codes_t[:, 4:128].float().any()


@pytest.mark.parametrize("tokens", [0, 1])
def test_rows_of_no_token_are_zeros(tokens: int) -> None:
    """Also where there are no tokens, as on a rank that none came to."""
    x, sources = torch.ones(tokens, 128).bfloat16(), torch.full((128,), -1, dtype=torch.int32)
    if tokens:
        sources[127] = 0
    found = quantize_both(x, sources)
    assert found.codes is not None and found.codes.shape == found.codes_t.shape == (128, 128)
    assert not found.codes[:127].float().any() and not found.codes_t[:, :127].float().any()
    assert bool((found.codes[127].float() == 448 * tokens).all()) and bool((found.codes_t[:, 127].float() == 448 * tokens).all())


def quantize_rows(x: torch.Tensor) -> torch.Tensor:
    from megamoe_dsl.quant import quantize_e4m3_f32

    return quantize_e4m3_f32(x)[0].float()

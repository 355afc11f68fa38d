"""Public calls, each after one that differs in one thing, compared with the same call on a GPU that has run nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calls_in_a_row import Call, Calls, changes_of_place, changes_of_tensors, differences, must_be_refused, must_show
from megamoe_dsl import MegaMoE, Problem, gemm, grouped_gemm, k_grouped_gemm, moe, quantize_both
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import symmetric_buffer as ep_buffer
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime import expert_gradients, experts
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.runtime.top_experts import top_experts
from recorded_gpu import RecordedGpu

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
TRAINED = ("x", "topk_idx", "topk_weights", "w1", "w2")
TOKENS, FEW = 24, 6
"""Of a call of `moe`: so many take four launches on Hopper, a few one."""


def _weights(recipe: str) -> dict[str, Any]:
    """Of 4 experts, 256 channels and 256 between the linears."""
    shapes = {"w1": (512, 256), "w2": (256, 256)}
    found: dict[str, Any] = {}
    for name, (rows, k) in shapes.items():
        packed = recipe in ("fp8xfp4", "nvfp4xnvfp4")
        dtype = torch.uint8 if packed else BF16 if recipe == "bf16xbf16" else FP8
        found[name] = torch.zeros(4, rows, k // 2 if packed else k, dtype=dtype)
        scales = torch.zeros(4, k // (64 if recipe == "nvfp4xnvfp4" else 128), rows, dtype=torch.int32) if packed else None
        found[f"{name}_sf"] = torch.ones(4, rows // 128, k // 128) if dtype == FP8 else scales
    if recipe == "nvfp4xnvfp4":
        found["factors"] = torch.ones(5, 4)
    return found


def chosen(recipe: str, tokens: int = TOKENS) -> Call:
    """A call of `moe` with experts."""
    x = torch.zeros(tokens, 256, dtype=BF16)
    idx, weights = torch.zeros(tokens, 2, dtype=torch.int64), torch.ones(tokens, 2)
    return Call({"x": x, **_weights(recipe), "topk_idx": idx, "topk_weights": weights})


def biased() -> Call:
    """A call of `moe` whose linears have biases."""
    return chosen("fp8xfp8").but(w1_bias=torch.zeros(4, 512), w2_bias=torch.zeros(4, 256))


def hashed() -> Call:
    """A call of `moe` whose experts a table names, each in one of two places."""
    tables = {"token_ids": torch.zeros(TOKENS).long(), "hash_table": torch.zeros(9, 2).int(), "replicas": torch.zeros(4, 2).int()}
    return routed().but(score_bias=None, scores="softmax", **tables, replica_shift=1)


def routed(tokens: int = TOKENS) -> Call:
    """A call of `moe` with logits and a bias."""
    given = {"router_logits": torch.zeros(tokens, 4), "score_bias": torch.zeros(4), "topk": 2, "scores": "sigmoid"}
    return Call({"x": torch.zeros(tokens, 256, dtype=BF16), **_weights("fp8xfp8"), **given})


def _moe_changes(call: Call) -> dict[str, Call]:
    rows = len(call.arguments["x"]) * 2
    stored = torch.zeros(rows, 512, dtype=BF16)
    some = ("x", "topk_idx", "topk_weights", "router_logits", "token_ids")
    fewer = {name: call.arguments[name][:3] for name in some if name in call.arguments}
    more = {name: one.new_zeros(300, *one.shape[1:]) for name in some if (one := call.arguments.get(name)) is not None}
    layer = {name: one.clone() for name, one in call.arguments.items() if name.startswith("w") and one is not None}
    packed = call.arguments["w1"].dtype == torch.uint8 and "factors" not in call.arguments
    return {
        **({"of packed tokens": call.but(recipe="mxf4xmxf4")} if packed else {}),
        **changes_of_tensors(call),
        **changes_of_place(call),
        "another layer of the shape": call.but(**layer),
        "fewer tokens": call.but(**fewer),
        "more tokens": call.but(**more),
        "up first": call.but(gate_up="up_first"),
        "another activation": call.but(activation="swigluoai"),
        "another clamp": call.but(activation_clamp=3.0),
        **({"int32": call.but(topk_idx=call.arguments["topk_idx"].int())} if "topk_idx" in call.arguments else {}),
        **({"bf16 weights": call.but(topk_weights=call.arguments["topk_weights"].bfloat16())} if "topk_idx" in call.arguments else {}),
        "stored": call.but(preactivations=stored),
        "stored, far": replace(call.but(preactivations=stored), far=("preactivations",)),
        "stored, shifted": call.but(preactivations=torch.zeros(rows * 512 + 1, dtype=BF16)[1:].view(rows, 512)),
    }


def _routed_changes(call: Call) -> dict[str, Call]:
    return {
        **_moe_changes(call),
        "one expert": call.but(topk=1),
        **({"softmax": call.but(scores="softmax", score_bias=None)} if call.arguments["score_bias"] is not None else {}),
        "scaled": call.but(weight_scale=2.5),
        "bf16 logits": call.but(router_logits=call.arguments["router_logits"].bfloat16()),
        "another shift": call.but(replica_shift=2),
        "other tables": call.but(hash_table=torch.zeros(7, 2).int(), token_ids=torch.zeros(len(call.arguments["x"])).long()),
    }


def _gemm(recipe: str) -> Call:
    codes = torch.uint8
    types = {"fp8xfp8": (FP8, FP8), "bf16xbf16": (BF16, BF16), "fp8xfp4": (FP8, codes), "nvfp4xnvfp4": (codes, codes)}[recipe]
    a, b = (torch.zeros(rows, 128 if one == codes else 256, dtype=one) for rows, one in zip((40, 208), types, strict=True))
    scales: dict[str, Any] = {"a_sf": None, "b_sf": None}
    if recipe == "fp8xfp8":
        scales = {"a_sf": torch.ones(2, 40).T, "b_sf": torch.ones(2, 2)}
    elif recipe == "fp8xfp4":
        scales = {"a_sf": torch.zeros(2, 128, dtype=torch.int32), "b_sf": torch.zeros(2, 256, dtype=torch.int32)}
    elif recipe == "nvfp4xnvfp4":
        words = {"a_sf": torch.zeros(4, 128, dtype=torch.int32), "b_sf": torch.zeros(4, 256, dtype=torch.int32)}
        scales = {**words, "factors": torch.ones(1)}
    return Call({"a": a, "b": b, **scales, "out": torch.zeros(40, 208, dtype=BF16)})


def _grouped() -> Call:
    given = {"a": torch.zeros(40, 256, dtype=FP8), "a_sf": torch.ones(2, 40).T, "b": torch.zeros(3, 208, 256, dtype=FP8)}
    return Call({**given, "b_sf": torch.ones(3, 2, 2), "groups": torch.zeros(3, dtype=torch.int32)})


def _gemm_changes(call: Call) -> dict[str, Call]:
    given = call.arguments
    shifted: dict[str, Call] = {}
    rows = {name: given[name][:8] for name in ("a", "out") if given.get(name) is not None}
    if given["a_sf"] is not None and given["a_sf"].dtype == torch.float32:
        rows["a_sf"] = given["a_sf"][:8]
    if given["a_sf"] is not None and given["a_sf"].dtype == torch.float32:
        shifted["a_sf by column, shifted"] = call.but(a_sf=torch.ones(81)[1:].view(2, 40).T)
    wide = {"out": torch.zeros(40, 208)}
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        **shifted,
        "fewer rows": call.but(**rows),
        "f32": call.but(**wide),
        "added": call.but(**wide, accumulate=True),
        "f32, not given": call.but(out=None, out_dtype=torch.float32),
        "invariant": call.but(batch_invariant=True),
    }


def _grouped_changes(call: Call) -> dict[str, Call]:
    """Also of the kinds that `groups` may have."""
    blocks, rows = torch.zeros(1, dtype=torch.int32), {name: call.arguments[name] for name in ("a", "a_sf")}
    masked = {"a": rows["a"].new_zeros(3, 8, 256), "a_sf": torch.ones(3, 2, 8).mT, "kind": "masked"}
    whole = {"a": rows["a"].new_zeros(128, 256), "a_sf": torch.ones(2, 128).T}
    return {
        **_gemm_changes(call),
        "aligned": call.but(**whole, kind="aligned"),
        "contiguous": call.but(**whole, groups=blocks, kind="contiguous"),
        "masked": call.but(**masked),
    }


def _columns() -> Call:
    """Of `k_grouped_gemm`: columns of three groups."""
    left, right = torch.zeros(64, 256, dtype=FP8), torch.zeros(96, 256, dtype=FP8)
    given = {"left": left, "left_sf": torch.ones(2, 64), "right": right, "right_sf": torch.ones(2, 96)}
    return Call({**given, "ends": torch.zeros(3, dtype=torch.int32), "out": torch.zeros(3, 64, 96, dtype=BF16)})


def _columns_changes(call: Call) -> dict[str, Call]:
    given = call.arguments
    half = {name: given[name][:, :128] if name in ("left", "right") else given[name][:1] for name in ("left", "left_sf", "right", "right_sf")}
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "fewer columns": call.but(**{name: one.contiguous() for name, one in half.items()}),
        "f32": call.but(out=torch.zeros(3, 64, 96)),
        "f32, not given": call.but(out=None, out_dtype=torch.float32),
        "fewer": call.but(ends=torch.zeros(2, dtype=torch.int32), out=torch.zeros(2, 64, 96, dtype=BF16)),
    }


def _both_ways() -> Call:
    return Call({"x": torch.zeros(256, 384, dtype=BF16), "sources": torch.zeros(128, dtype=torch.int32)})


def _plain_quantize_both(**given: Any) -> tuple[torch.Tensor, ...]:
    return tuple(one for one in quantize_both(**given) if one is not None)


def _both_ways_changes(call: Call) -> dict[str, Call]:
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "columns alone": call.but(rows=False),
        "more tokens": call.but(sources=torch.zeros(256, dtype=torch.int32)),
        "fewer channels": call.but(x=torch.zeros(256, 128, dtype=BF16)),
    }


def train_step(
    tensors: Sequence[torch.Tensor], dy: torch.Tensor, totals: Any = (None, None), recipe: str = "", frozen: bool = False, **layout: Any
) -> tuple[torch.Tensor, ...]:
    """y and gradients as autograd has them made, in whose functions a mode of torch is off."""
    names = {"recompute": False, "gate_up": "gate_first", "activation": "silu", "quantizes": recipe == "fp8xfp8", **layout}
    y, stored = experts._training(*tensors, *totals, *names.values())
    ctx = SimpleNamespace(**names, saved_tensors=(*tensors, stored), totals=totals, needs_input_grad=[True, False, True, *[not frozen] * 2])
    with torch.no_grad():
        found = expert_gradients._backward(ctx, dy, None)
    return (y, *(one for one in found if one is not None))


def _train(dy: torch.Tensor, w1_total: Any = None, w2_total: Any = None, **given: Any) -> tuple[torch.Tensor, ...]:
    tensors = [given.pop(name) for name in TRAINED]
    return train_step(tensors, dy, (w1_total, w2_total), **given)


def _training() -> Call:
    given = chosen("bf16xbf16").arguments
    return Call({**{name: given[name] for name in TRAINED}, "dy": torch.zeros(TOKENS, 256, dtype=BF16)})


def _training_changes(call: Call) -> dict[str, Call]:
    totals = {"w1_total": torch.zeros(4, 512, 256), "w2_total": torch.zeros(4, 256, 256)}
    by_rows = ("x", "topk_idx", "topk_weights", "dy")
    return {
        **{name: one for name, one in changes_of_tensors(call).items() if name.endswith(", another")},
        **{name: one for name, one in changes_of_place(call).items() if "device" not in name and name != "all far"},
        "fewer tokens": call.but(**{name: call.arguments[name][:20] for name in by_rows}),
        "int32": call.but(topk_idx=call.arguments["topk_idx"].int()),
        "up first": call.but(gate_up="up_first"),
        "recomputed": call.but(recompute=True),
        "frozen": call.but(frozen=True),
        "of another dtype, quantized": call.but(recipe="fp8xfp8"),
        "quantized, recomputed": call.but(recipe="fp8xfp8", recompute=True),
        "added": call.but(**totals),
        "added, quantized": call.but(**totals, recipe="fp8xfp8"),
    }


def _router() -> Call:
    return Call({"logits": torch.zeros(TOKENS, 64), "bias": torch.zeros(64), "topk": 4, "scores": "sigmoid", "groups": 2, "topk_groups": 2})


def _router_changes(call: Call) -> dict[str, Call]:
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "fewer tokens": call.but(logits=call.arguments["logits"][:3]),
        "other numbers": call.but(topk=2),
        "one group": call.but(topk_groups=1),
        "scaled": call.but(scale=2.5),
        "bf16": call.but(logits=call.arguments["logits"].bfloat16()),
    }


MOE = Problem(512, 256, 4, 2, 1, 64, recipe="fp8xfp8")


def _layers(gpu: RecordedGpu) -> Any:
    """Two layers on one buffer."""
    symmetric = SymmetricBuffer.allocate(MOE)
    gpu.show(sym=symmetric.sym, peers=symmetric.peers, watchdog=symmetric.watchdog)
    layers = {name: MegaMoE(MOE, symmetric=symmetric, bounds=(3,)) for name in ("first", "second")}
    for name, layer in layers.items():
        tensors = {"stats": layer.stats, **{one: getattr(layer.memory.weights, one) for one in ("fc1", "fc1_sf", "fc2", "fc2_sf")}}
        gpu.show(**{f"{name} {one}": tensor for one, tensor in tensors.items()})
        gpu.show(**{f"{name} maps {bound}": kernel.buffers.maps for bound, kernel in layer.kernels.items()})
    return lambda layer, **given: layers[layer](**given)


def _layer_call(tokens: int = 2) -> Call:
    given = {"x": torch.zeros(tokens, 512, dtype=FP8), "x_sf": torch.ones(tokens, 4), "topk_idx": torch.zeros(tokens, 2, dtype=torch.int64)}
    return Call({"layer": "first", **given, "topk_weights": torch.ones(tokens, 2), "num_tokens_bound": 3})


def _layer_changes(call: Call) -> dict[str, Call]:
    own = ("x", "x_sf", "topk_idx", "topk_weights")
    out = torch.zeros(3, 512, dtype=BF16)
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "another layer": call.but(layer="second"),
        "one token": call.but(**{name: call.arguments[name][:1] for name in own}),
        "no token": call.but(**{name: call.arguments[name][:0] for name in own}),
        "more tokens": call.but(**{name: call.arguments[name].repeat(4, 1) for name in own}, num_tokens_bound=None),
        "too many tokens": call.but(**{name: call.arguments[name].repeat(4, 1) for name in own}),
        "another bound": call.but(num_tokens_bound=64),
        "padding": call.but(padded_tokens=3),
        "too much padding": call.but(padded_tokens=65, num_tokens_bound=None),
        "padding, out": call.but(padded_tokens=3, out=out),
        "out of other rows": call.but(out=out),
        "out, far": replace(call.but(out=out[:2].clone()), far=("out",)),
        "int32": call.but(topk_idx=call.arguments["topk_idx"].int()),
        "bf16": call.but(x=torch.zeros(2, 512, dtype=BF16), x_sf=None),
        "bf16, shifted": call.but(x=torch.zeros(1025, dtype=BF16)[1:].view(2, 512), x_sf=None),
    }


def _ep(gpu: RecordedGpu) -> Any:
    """Two layers on one buffer."""
    problem = Problem(256, 128, 4, 2, 1, 8, recipe="fp8xfp8")
    symmetric = SymmetricBuffer.allocate(problem, region=ep_buffer(problem))
    gpu.show(sym=symmetric.sym, peers=symmetric.peers, watchdog=symmetric.watchdog)
    fc1, fc2 = torch.zeros(4, 256, 256, dtype=FP8), torch.zeros(4, 256, 128, dtype=FP8)
    layers = {}
    for name in ("first", "second"):
        weights = ExpertWeights(fc1.clone(), torch.ones(4, 2, 2), fc2.clone(), torch.ones(4, 2, 1))
        layer = layers[name] = EpMoE(problem, weights, activation=lambda rows: rows[:, :128], symmetric=symmetric)
        own = {"rows": layer.rows, "acts": layer.acts.values, "acts_sf": layer.acts.scales, "nowhere": layer._nowhere}
        gpu.show(**{f"{name} {one}": tensor for one, tensor in {**own, **vars_of(weights)}.items()})
    return lambda layer, **given: layers[layer](**given)


def vars_of(weights: ExpertWeights) -> dict[str, torch.Tensor]:
    return {name: getattr(weights, name) for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")}


def _ep_call() -> Call:
    given = {"x": torch.zeros(2, 256, dtype=BF16), "topk_idx": torch.zeros(2, 2, dtype=torch.int64), "topk_weights": torch.ones(2, 2)}
    return Call({"layer": "first", **given, "out": torch.zeros(2, 256, dtype=BF16)})


def _ep_changes(call: Call) -> dict[str, Call]:
    given = {name: one for name, one in call.arguments.items() if name != "layer"}
    return {
        **{name: one for name, one in changes_of_tensors(call).items() if name != "x, shifted"},
        **changes_of_place(call),
        "another layer": call.but(layer="second"),
        "x of odd places": call.but(x=torch.zeros(2 * 256 + 1, dtype=BF16)[1:].view(2, 256)),
        "one token": call.but(**{name: one[:1] for name, one in given.items()}),
        "no token": call.but(**{name: one[:0] for name, one in given.items()}),
        "too many tokens": call.but(**{name: one.repeat(5, 1) for name, one in given.items()}),
        "int32": call.but(topk_idx=given["topk_idx"].int()),
        "quantized": call.but(x=given["x"].to(FP8), x_sf=torch.ones(2, 2)),
        "scattered": call.but(topk_idx=torch.tensor([[0, 1], [0, 1]]), scatter_indices=torch.tensor([[1, 1], [0, 0]])),
    }


def _without_refusals(made: Any) -> Any:
    """The same changes but those that each architecture refuses alike."""
    refused = ("of another dtype", "strided", "far")
    return lambda call: {name: one for name, one in made(call).items() if not name.endswith(refused)}


FAMILIES: dict[str, tuple[Calls, Call, Any]] = {
    **{
        f"moe {recipe} {arch}": (Calls(lambda _: moe, arch), chosen(recipe), _without_refusals(_moe_changes))
        for recipe, arch in (
            ("bf16xbf16", "sm_90a"),
            ("bf16xbf16", "sm_100a"),
            ("fp8xfp4", "sm_100a"),
        )
    },
    **{f"moe {recipe}, few": (Calls(lambda _: moe), chosen(recipe, FEW), _moe_changes) for recipe in ("fp8xfp8", "bf16xbf16")},
    "moe fp8xfp8": (Calls(lambda _: moe), chosen("fp8xfp8"), _moe_changes),
    "moe nvfp4xnvfp4": (Calls(lambda _: moe, "sm_100a"), chosen("nvfp4xnvfp4"), _moe_changes),
    "moe of logits": (Calls(lambda _: moe), routed(), _routed_changes),
    "moe of tables": (Calls(lambda _: moe), hashed(), _without_refusals(_routed_changes)),
    "moe with biases": (Calls(lambda _: moe), biased(), _without_refusals(_moe_changes)),
    "gemm fp8xfp8": (Calls(lambda _: gemm), _gemm("fp8xfp8"), _gemm_changes),
    "gemm bf16xbf16": (Calls(lambda _: gemm), _gemm("bf16xbf16"), _gemm_changes),
    "gemm fp8xfp4": (Calls(lambda _: gemm, "sm_100a"), _gemm("fp8xfp4"), _gemm_changes),
    "gemm nvfp4xnvfp4": (Calls(lambda _: gemm, "sm_100a"), _gemm("nvfp4xnvfp4"), _gemm_changes),
    "grouped_gemm": (Calls(lambda _: grouped_gemm), _grouped(), _grouped_changes),
    "k_grouped_gemm": (Calls(lambda _: k_grouped_gemm), _columns(), _columns_changes),
    "quantize_both": (Calls(lambda _: _plain_quantize_both), _both_ways(), _both_ways_changes),
    "training": (Calls(lambda _: _train), _training(), _training_changes),
    "MegaMoE": (Calls(_layers), _layer_call(), _layer_changes),
    "EpMoE": (Calls(_ep), _ep_call(), _ep_changes),
    "top_experts": (Calls(lambda _: top_experts), _router(), _router_changes),
}


@cache
def changes(family: str) -> dict[str, Call]:
    _, call, made = FAMILIES[family]
    return made(call)


@pytest.mark.parametrize(("family", "change"), [(family, change) for family in FAMILIES for change in changes(family)])
def test_a_call_does_what_it_would_do_alone(family: str, change: str) -> None:
    calls, call, _ = FAMILIES[family]
    changed = changes(family)[change]
    [alone] = calls.outcomes(changed)
    first, second, third = calls.outcomes(call, changed, call)
    assert not differences(second, alone) and not differences(third, first)
    assert not must_show(change) or differences(alone, first)
    if must_be_refused(change) or isinstance(alone, str):
        assert isinstance(alone, str) and alone.endswith("after 0 launches") and "TensorMap" not in alone


def test_a_capture_does_not_wait_for_the_places_of_pairs() -> None:
    """What a call looks at on the device it leaves alone while a graph is captured: places that no expert has, and rows in use."""
    calls, call, _ = FAMILIES["EpMoE"]
    wrong = call.but(scatter_indices=torch.full((2, 2), 99))
    [refused] = calls.outcomes(wrong)
    [captured] = calls.outcomes(replace(wrong, capture=3))
    assert isinstance(refused, str) and refused.startswith("scatter_indices[0, 0] = 99") and isinstance(captured, list)

"""Public calls, each after one that differs in one thing, compared with the same call on a GPU that has run nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gemm_calls import (
    both_ways_call,
    both_ways_changes,
    columns_call,
    columns_changes,
    gemm_call,
    gemm_changes,
    grouped_call,
    grouped_changes,
    plain_quantize_both,
)
from layer_calls import (
    MOE,
    deep_gemm_call,
    deep_gemm_changes,
    deep_gemm_on,
    ep_call,
    ep_changes,
    ep_on,
    few_call,
    few_changes,
    layer_call,
    layer_changes,
    layers_on,
    staged_call,
    staged_changes,
)

from calls_in_a_row import Call, Calls, changes_of_place, changes_of_tensors, differences, must_be_refused, must_show
from megamoe_dsl import gemm, grouped_gemm, k_grouped_gemm, moe
from megamoe_dsl.runtime import expert_gradients, experts
from megamoe_dsl.runtime.top_experts import top_experts

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
        "one token less": call.but(**{name: call.arguments[name][:-1] for name in fewer}),
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
    }


def _hashed_changes(call: Call) -> dict[str, Call]:
    tables = {"hash_table": torch.zeros(7, 2).int(), "token_ids": torch.zeros(TOKENS).long()}
    return {**_routed_changes(call), "another shift": call.but(replica_shift=2), "other tables": call.but(**tables)}


def train_step(
    tensors: Sequence[torch.Tensor],
    dy: torch.Tensor,
    totals: Any = (None, None),
    recipe: str = "bf16xbf16",
    frozen: bool = False,
    **layout: Any,
) -> tuple[torch.Tensor, ...]:
    """y and gradients as autograd has them made, in whose functions a mode of torch is off."""
    names = {"recompute": False, "gate_up": "gate_first", "activation": "silu", "recipe": recipe, **layout}
    made = (None,) * expert_gradients.MADE
    y, *kept = experts._training(*tensors, *totals, *made, *names.values())
    needed = [True, False, True, *[not frozen] * 2]
    ctx = SimpleNamespace(**names, saved_tensors=(*tensors, *kept, *made), totals=totals, needs_input_grad=needed)
    with torch.no_grad():
        found = expert_gradients._backward(ctx, dy, None)
    return (y, *(one for one in found if one is not None))


def train(dy: torch.Tensor, w1_total: Any = None, w2_total: Any = None, **given: Any) -> tuple[torch.Tensor, ...]:
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
    "moe of tables": (Calls(lambda _: moe), hashed(), _without_refusals(_hashed_changes)),
    "moe with biases": (Calls(lambda _: moe), biased(), _without_refusals(_moe_changes)),
    "gemm fp8xfp8": (Calls(lambda _: gemm), gemm_call("fp8xfp8"), gemm_changes),
    "gemm bf16xbf16": (Calls(lambda _: gemm), gemm_call("bf16xbf16"), gemm_changes),
    "gemm fp8xfp4": (Calls(lambda _: gemm, "sm_100a"), gemm_call("fp8xfp4"), gemm_changes),
    "gemm nvfp4xnvfp4": (Calls(lambda _: gemm, "sm_100a"), gemm_call("nvfp4xnvfp4"), gemm_changes),
    "grouped_gemm": (Calls(lambda _: grouped_gemm), grouped_call(), grouped_changes),
    "k_grouped_gemm": (Calls(lambda _: k_grouped_gemm), columns_call(), columns_changes),
    "quantize_both": (Calls(lambda _: plain_quantize_both), both_ways_call(), both_ways_changes),
    "training": (Calls(lambda _: train), _training(), _training_changes),
    "MegaMoE": (Calls(layers_on), layer_call(), layer_changes),
    "MegaMoE, few": (Calls(partial(layers_on, problem=replace(MOE, recipe="fp8xmxfp4"))), few_call(), few_changes),
    "deep_gemm": (Calls(deep_gemm_on), deep_gemm_call(), deep_gemm_changes),
    "deep_gemm, tokens": (Calls(deep_gemm_on), staged_call(), staged_changes),
    "EpMoE": (Calls(ep_on), ep_call(), ep_changes),
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

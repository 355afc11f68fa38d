"""The host's part of public calls: each after one that differs in one thing, compared with the same call on a GPU that has run nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from calls_in_a_row import Call, Calls, changes_of_place, changes_of_tensors
from megamoe_dsl import gemm, grouped_gemm, moe
from megamoe_dsl.runtime.top_experts import top_experts

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
TOKENS = 6


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


def routed(tokens: int = TOKENS) -> Call:
    """A call of `moe` with logits and a bias."""
    given = {"router_logits": torch.zeros(tokens, 4), "score_bias": torch.zeros(4), "topk": 2, "scores": "sigmoid"}
    return Call({"x": torch.zeros(tokens, 256, dtype=BF16), **_weights("fp8xfp8"), **given})


def _moe_changes(call: Call) -> dict[str, Call]:
    rows = TOKENS * 2
    stored = torch.zeros(rows, 512, dtype=BF16)
    some = ("x", "topk_idx", "topk_weights", "router_logits")
    fewer = {name: call.arguments[name][:3] for name in some if name in call.arguments}
    more = {name: one.new_zeros(300, one.shape[1]) for name in some if (one := call.arguments.get(name)) is not None}
    layer = {name: one.clone() for name, one in call.arguments.items() if name.startswith("w") and one is not None}
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "another layer of the shape": call.but(**layer),
        "fewer tokens": call.but(**fewer),
        "more tokens": call.but(**more),
        "up first": call.but(gate_up="up_first"),
        "another activation": call.but(activation="swigluoai"),
        "stored": call.but(preactivations=stored),
        "stored, shifted": call.but(preactivations=torch.zeros(rows * 512 + 1, dtype=BF16)[1:].view(rows, 512)),
    }


def _routed_changes(call: Call) -> dict[str, Call]:
    return {
        **_moe_changes(call),
        "one expert": call.but(topk=1),
        "softmax": call.but(scores="softmax", score_bias=None),
        "scaled": call.but(weight_scale=2.5),
        "bf16 logits": call.but(router_logits=call.arguments["router_logits"].bfloat16()),
    }


def _gemm(recipe: str) -> Call:
    a_type, b_type = {"fp8xfp8": (FP8, FP8), "bf16xbf16": (BF16, BF16), "fp8xfp4": (FP8, torch.uint8)}[recipe]
    a, b = torch.zeros(40, 256, dtype=a_type), torch.zeros(208, 128 if b_type == torch.uint8 else 256, dtype=b_type)
    scales: dict[str, Any] = {"a_sf": None, "b_sf": None}
    if recipe == "fp8xfp8":
        scales = {"a_sf": torch.ones(2, 40).T, "b_sf": torch.ones(2, 2)}
    elif recipe == "fp8xfp4":
        scales = {"a_sf": torch.zeros(2, 128, dtype=torch.int32), "b_sf": torch.zeros(2, 256, dtype=torch.int32)}
    return Call({"a": a, "b": b, **scales, "out": torch.zeros(40, 208, dtype=BF16)})


def _grouped() -> Call:
    given = {"a": torch.zeros(40, 256, dtype=FP8), "a_sf": torch.ones(2, 40).T, "b": torch.zeros(3, 208, 256, dtype=FP8)}
    return Call({**given, "b_sf": torch.ones(3, 2, 2), "groups": torch.zeros(3, dtype=torch.int32)})


def _gemm_changes(call: Call) -> dict[str, Call]:
    given = call.arguments
    rows = {name: given[name][:8] for name in ("a", "out") if given.get(name) is not None}
    if given["a_sf"] is not None and given["a_sf"].dtype == torch.float32:
        rows["a_sf"] = given["a_sf"][:8]
    wide = {"out": torch.zeros(40, 208)}
    return {
        **changes_of_tensors(call),
        **changes_of_place(call),
        "fewer rows": call.but(**rows),
        "f32": call.but(**wide),
        "added": call.but(**wide, accumulate=True),
        "f32, not given": call.but(out=None, out_dtype=torch.float32),
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


FAMILIES: dict[str, tuple[Calls, Call, Any]] = {
    **{
        f"moe {recipe} {arch}": (Calls(lambda: moe, arch), chosen(recipe), _moe_changes)
        for recipe, arch in (
            ("fp8xfp8", "sm_90a"),
            ("bf16xbf16", "sm_90a"),
            ("bf16xbf16", "sm_100a"),
            ("fp8xfp4", "sm_100a"),
            ("nvfp4xnvfp4", "sm_100a"),
        )
    },
    "moe of logits": (Calls(lambda: moe), routed(), _routed_changes),
    "gemm fp8xfp8": (Calls(lambda: gemm), _gemm("fp8xfp8"), _gemm_changes),
    "gemm bf16xbf16": (Calls(lambda: gemm), _gemm("bf16xbf16"), _gemm_changes),
    "gemm fp8xfp4": (Calls(lambda: gemm, "sm_100a"), _gemm("fp8xfp4"), _gemm_changes),
    "grouped_gemm": (Calls(lambda: grouped_gemm), _grouped(), _gemm_changes),
    "top_experts": (Calls(lambda: top_experts), _router(), _router_changes),
}


@cache
def changes(family: str) -> dict[str, Call]:
    _, call, made = FAMILIES[family]
    return made(call)


@pytest.mark.parametrize(("family", "change"), [(family, change) for family in FAMILIES for change in changes(family)])
def test_a_call_does_what_it_would_do_alone(family: str, change: str) -> None:
    calls, call, _ = FAMILIES[family]
    changed = changes(family)[change]
    alone = calls.last_of(changed, changed)
    assert calls.last_of(call, changed) == alone
    assert calls.last_of(changed, call) == calls.last_of(call, call)
